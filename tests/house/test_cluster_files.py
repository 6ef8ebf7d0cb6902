"""The Slurm script and the KubeRay manifest: what they start, how they stop, that their parts agree."""

import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from archer.config import compose

ROOT = Path(__file__).parents[2]
BATCH = ROOT / "scripts" / "cluster" / "archer.sbatch"
MANIFEST = ROOT / "scripts" / "cluster" / "rayjob.yaml"

TOOLS = {
    "scontrol": '[[ $1 == show ]] && printf "node1\\nnode2\\n"; exit 0',
    "srun": """
        case "$*" in
          *hostname*) echo "10.0.0.1 172.17.0.1" ;;
          *pkill*) touch "$NOTES/asked to stop" ;;
          *) until [[ -e "$NOTES/asked to stop" || -e "$NOTES/done" ]]; do sleep 0.05; done
             exit "${RC:-0}" ;;
        esac""",
}
"""Slurm's commands, as far as the script uses them: each notes its arguments, one a line."""


class Slurm:
    """Starts the batch script as Slurm would, on two nodes of four GPUs that are not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, does in TOOLS.items():
            tool = folder / name
            tool.write_text(
                f'#!/bin/bash\nprintf "%q " {name} "$@" >> "$NOTES/calls"; echo >> "$NOTES/calls"\n{does}\n'
            )
            tool.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        job = {
            "SLURM_JOB_ID": "4321",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_NNODES": "2",
            "SLURM_GPUS_ON_NODE": "4",
            "NOTES": str(self.folder),
            "PATH": f"{self.folder}:/usr/bin:/bin",
        }
        return subprocess.Popen(
            ["bash", str(BATCH), *arguments], env=job | environment, stderr=subprocess.PIPE, text=True
        )

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [shlex.split(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_the_run(self, job: subprocess.Popen[str]) -> list[str]:
        while job.poll() is None:
            if found := [call for call in self.calls() if "symmetric-run" in call]:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"the run was not started: {self.calls()}")


@pytest.fixture
def slurm(tmp_path) -> Slurm:
    return Slurm(tmp_path)


def test_every_node_gets_one_task_of_ray_and_the_run(slurm):
    job = slurm.start("/shared/run", "recipe=base", "data.train_files=a file.jsonl")
    call = slurm.wait_for_the_run(job)
    (slurm.folder / "done").touch()
    assert job.wait(20) == 0
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(call)
    ray = call[call.index("ray") :]
    assert ray[:7] == [
        "ray",
        "symmetric-run",
        "--address",
        "10.0.0.1:24321",
        "--min-nodes",
        "2",
        "--num-gpus=4",
    ]
    assert ray[7:] == [
        "--",
        "archer",
        "train",
        "engine=verl",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=4",
        "trainer.default_local_dir=/shared/run",
        "recipe=base",
        "data.train_files=a file.jsonl",
    ]
    assert not any("requeue" in call for call in slurm.calls())


def test_the_inner_shell_sources_the_environment_and_becomes_the_command(slurm, tmp_path):
    (tmp_path / "activate").write_text("export FROM_THE_ENVIRONMENT=yes\n")
    job = slurm.start("/shared/run", ARCHER_ENV=str(tmp_path / "activate"))
    call = slurm.wait_for_the_run(job)
    (slurm.folder / "done").touch()
    job.wait(20)
    shell = call[call.index("bash") : call.index("ray")]
    said = subprocess.run([*shell, "env"], capture_output=True, text=True, check=True)
    assert "FROM_THE_ENVIRONMENT=yes" in said.stdout


def test_before_the_time_is_over_the_run_is_asked_to_stop_and_the_job_queues_again(slurm):
    job = slurm.start("/shared/run")
    run = slurm.wait_for_the_run(job)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(20) == 0
    asked = next(call for call in slurm.calls() if "pkill" in call)
    pattern = asked[asked.index("-f") + 1]
    driver = " ".join(run[run.index("archer") :])
    assert re.search(pattern, f"/venv/bin/python /venv/bin/{driver}")
    assert not re.search(pattern, f"/venv/bin/python /venv/bin/ray symmetric-run -- {driver}")
    assert slurm.calls()[-1] == ["scontrol", "requeue", "4321"]


def test_a_run_that_fails_fails_the_job(slurm):
    job = slurm.start("/shared/run", RC="2")
    slurm.wait_for_the_run(job)
    (slurm.folder / "done").touch()
    assert job.wait(20) == 2
    assert not any("requeue" in call for call in slurm.calls())


def test_without_a_folder_for_the_run_it_says_how_it_is_called(slurm):
    job = slurm.start()
    assert job.communicate(timeout=20)[1].startswith("usage: sbatch") and job.returncode == 2


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_the_manifest_starts_as_many_devices_as_the_run_asks_for():
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    (worker,) = workers["template"]["spec"]["containers"]
    command = shlex.split(spec["entrypoint"])
    assert command[:2] == ["archer", "train"]
    config = compose(command[2:])
    assert config.trainer.nnodes == workers["replicas"]
    assert config.trainer.n_gpus_per_node == int(worker["resources"]["limits"]["nvidia.com/gpu"])


def test_the_parts_of_the_manifest_fit_each_other_and_the_pins():
    job = yaml.safe_load(MANIFEST.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    cluster = job["spec"]["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']}\n" in (ROOT / "constraints-gpu.txt").read_text()
    images = {container["image"] for pod in pods(cluster) for container in pod["containers"]}
    assert images == {"REGISTRY/archer:gpu"}
    for pod in pods(cluster):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert set(mounts.values()) == volumes
            assert mounts["/shared"] == "shared", "models, prompts and checkpoints are on the shared volume"
            assert container["resources"]["requests"] == container["resources"]["limits"]
    assert yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
