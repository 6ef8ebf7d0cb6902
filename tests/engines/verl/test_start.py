"""What is found out before a run on Ray begins: versions, verl's inside, Ray itself."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement as Specifier
from packaging.specifiers import SpecifierSet

from archer.config import compose
from archer.engines.verl import cluster, versions
from archer.engines.verl.settings import verl_settings
from archer.engines.verl.trainer import NOTHING, ArcherTrainer
from archer.errors import ArcherError
from archer.tracking import ValidationSample

ROOT = Path(__file__).parents[3]


def test_the_versions_admitted_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["verl"]]
    specifiers = {Specifier(text).name: Specifier(text).specifier for text in wanted}
    verl = next(requirement for requirement in versions.ALWAYS if requirement.package == "verl")
    assert specifiers["verl"] == SpecifierSet(f">={verl.least},<{verl.below}")
    for requirement in versions.LOCAL:
        assert specifiers[requirement.package] == SpecifierSet(f">={requirement.least}")
        assert requirement.below is None, "verl's upper bounds are verl's"


def with_versions(monkeypatch, **changed: str) -> None:
    real = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: changed.get(name) or real(name))


@pytest.mark.parametrize("number", ["0.9.2", "0.10.0"])
def test_a_verl_that_was_not_tried_is_refused(monkeypatch, number):
    with_versions(monkeypatch, verl=number)
    with pytest.raises(ArcherError, match=f"verl is {number}, expected verl >= 0.9.1, < 0.9.2"):
        versions.check_versions("transformers_cpu")


def test_a_trl_too_new_for_verl_is_named_and_none_is_fine(monkeypatch):
    with_versions(monkeypatch, trl="1.2.0")
    with pytest.raises(ArcherError, match=r"trl is 1\.2\.0, expected .*pip uninstall trl"):
        versions.check_versions("transformers_cpu")
    with_versions(monkeypatch, trl="0.24.0")
    assert versions.check_versions("transformers_cpu")["trl"] == "0.24.0"
    monkeypatch.undo()
    versions.check_versions("transformers_cpu")


def test_the_installed_verl_has_everything_that_the_engine_extends():
    versions.check_internals("0.9.1")


def test_another_inside_of_verl_is_told_in_one_line(monkeypatch):
    changed = {"verl.workers.engine": ("EngineRegistry.gone",), "verl.no_such_module": ("anything",)}
    monkeypatch.setattr(versions, "INTERNALS", changed)
    with pytest.raises(ArcherError) as error:
        versions.check_internals("0.9.1")
    text = str(error.value)
    assert "\n" not in text
    assert "it has no verl.workers.engine.EngineRegistry.gone, verl.no_such_module" in text


def test_one_of_two_spellings_is_enough():
    assert list(versions.missing_internals({"math": ("taau|tau",)})) == []
    assert list(versions.missing_internals({"math": ("taau|taaau",)})) == ["math.taau or taaau"]


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        (
            {"address": "10.0.0.1:6379"},
            ConnectionError("no route"),
            "Ray at 10.0.0.1:6379 could not be joined",
        ),
        (
            {"address": "local"},
            ValueError("bad memory\nmore"),
            "could not be started: ValueError: bad memory\n",
        ),
        ({}, RuntimeError(), "could not be started: RuntimeError: no reason given"),
    ],
)
def test_a_ray_that_does_not_start_is_a_message(monkeypatch, options, error, expected):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def refuse(**_):
        raise error

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr(cluster, "ray_options", lambda config, settings: options)
    with pytest.raises(ArcherError) as raised, cluster.cluster(None, None):
        pass
    assert expected in str(raised.value)


@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_as_many_generations_of_a_validation_are_kept_as_are_wanted(wanted):
    trainer = SimpleNamespace(settings=compose([f"trainer.log_val_generations={wanted}"]))
    prompts, responses = ["1+1", "1+1", "2+2"], ["2", "3", "5"]
    ArcherTrainer._maybe_log_val_generations(trainer, prompts, responses, [1.0, 0.0, 0.0])
    first_of_each = [ValidationSample("1+1", "2", 1.0), ValidationSample("2+2", "5", 0.0)]
    assert trainer.generations == first_of_each[:wanted]


@pytest.mark.parametrize("wanted", [0, 2])
def test_the_responses_of_a_step_are_chosen_even_where_nothing_is_traced(monkeypatch, wanted):
    asked = []
    monkeypatch.setattr(
        "archer.engines.verl.trainer.best_and_worst",
        lambda record, count, tokenizer: asked.append((record.step, count, tokenizer)) or ["best", "worst"],
    )
    record = SimpleNamespace(step=3, mask=torch.ones(1, 2, dtype=torch.bool))
    trainer = SimpleNamespace(
        settings=compose([f"trainer.log_step_responses={wanted}"]),
        global_steps=3,
        selection=NOTHING,
        traces=SimpleNamespace(wants=lambda step: False, write=lambda *_: None),
        rows=SimpleNamespace(record=lambda step, *_: record),
        tokenizer="tokenizer",
        timing_raw={},
        updates=(),
        order=SimpleNamespace(mini_batches=[]),
        _marks=None,
        weighed=None,
    )
    ArcherTrainer._write_traces(trainer)
    assert asked == ([(3, 2, "tokenizer")] if wanted else [])
    assert trainer.responses == (["best", "worst"] if wanted else [])
    assert ("step_responses" in trainer.timing_raw) == bool(wanted)


def test_numbers_among_the_environment_for_ray_are_texts_as_it_wants_them():
    given = "ray_kwargs.ray_init.runtime_env.env_vars"
    config = compose(["engine=verl", "engine.device=cpu", f"{given}.NCCL_DEBUG=1", f"{given}.A=x"])
    variables = cluster.ray_options(config, verl_settings(config))["runtime_env"]["env_vars"]
    assert (variables["NCCL_DEBUG"], variables["A"]) == ("1", "x")


def ray_with_programs(monkeypatch, folder: Path, mode: int) -> list[Path]:
    """An installed Ray whose programs have a mode."""
    programs = [folder / name for name in versions.RAY_PROGRAMS]
    for program in programs:
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(versions, "find_spec", lambda name: spec if name == "ray" else None)
    return programs


def test_programs_of_ray_that_may_not_be_run_are_named_before_ray_is_started(monkeypatch, tmp_path):
    server, raylet = ray_with_programs(monkeypatch, tmp_path, 0o755)
    versions.check_versions("transformers_cpu")
    raylet.chmod(0o644)
    with pytest.raises(ArcherError) as error:
        versions.check_versions("transformers_cpu")
    assert f"Run: chmod +x {raylet}\n" in str(error.value)
    assert str(server) not in str(error.value)


def test_programs_of_ray_on_a_file_system_without_programs_are_told_otherwise(monkeypatch, tmp_path):
    ray_with_programs(monkeypatch, tmp_path, 0o755)
    monkeypatch.setattr(versions.os, "access", lambda path, mode: False)  # as access(2) says of noexec
    (text,) = versions.ray_programs_problem()
    assert "noexec" in text and str(tmp_path) in text and "chmod" not in text


def with_cores(monkeypatch, number: int) -> None:
    monkeypatch.setattr(cluster, "cores", lambda: number)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "RAY_RUNS_HERE", Path("/nowhere"))


@pytest.mark.parametrize(("there", "told"), [(4, 16), (64, 64)])
def test_a_ray_of_the_runs_own_has_cpus_enough_for_verls_processes(monkeypatch, there, told):
    """2 GPUs x 3, 8 storage units, their controller, 1 to place others."""
    with_cores(monkeypatch, there)
    config = compose(["engine=verl", "trainer.n_gpus_per_node=2"])
    assert cluster.ray_options(config, verl_settings(config))["num_cpus"] == told


def test_cpus_of_ray_are_the_users_where_given_and_not_given_to_one_that_is_joined(monkeypatch):
    with_cores(monkeypatch, 4)
    config = compose(["engine=verl", "ray_kwargs.ray_init.num_cpus=20"])
    assert cluster.ray_options(config, verl_settings(config))["num_cpus"] == 20
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config = compose(["engine=verl"])
    assert "num_cpus" not in cluster.ray_options(config, verl_settings(config))


def test_a_ray_with_too_few_cpus_is_refused_instead_of_waited_for(monkeypatch):
    config = compose(["engine=verl"])
    resources = {"GPU": 1.0, "CPU": 8.0}
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.cluster_resources", lambda: resources)
    with (
        pytest.raises(ArcherError, match=r"take 13 CPUs .* has 8: .*--num-cpus"),
        cluster.cluster(config, verl_settings(config)),
    ):
        pass


def test_variables_of_vllm_go_to_the_workers_but_for_those_of_one_machine(monkeypatch):
    with_cores(monkeypatch, 4)
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.7")
    config = compose(["engine=verl"])
    variables = cluster.ray_options(config, verl_settings(config))["runtime_env"]["env_vars"]
    assert variables["VLLM_USE_FLASHINFER_SAMPLER"] == "0" and "VLLM_HOST_IP" not in variables
