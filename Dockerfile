# Archer without GPU: the demo, `engine=verl engine.device=cpu`, and the viewer of runs from elsewhere.
#
#   docker build -t archer .
#   docker run --rm -p 7862:7862 archer view --demo --host 0.0.0.0
#   docker run --rm -v "$PWD/output:/runs/output" archer train
#
# Versions are those of constraints.txt and nothing else is chosen here, but for torch's build without CUDA.
FROM python:3.12-slim-bookworm

ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PYTHONUNBUFFERED=1

WORKDIR /opt/archer
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY archer archer
RUN pip install --no-cache-dir -c constraints.txt ".[verl,viewer,gradio,tensorboard,wandb,trackio,ablation,lora]" \
    && useradd --create-home --uid 1000 archer \
    && install --directory --owner=archer /runs

USER 1000
WORKDIR /runs
EXPOSE 7862
ENTRYPOINT ["archer"]
CMD ["view", "--demo", "--host", "0.0.0.0"]
