# `fastagg serve` in a container (docs/operations.md#in-a-container). Compiled without CUDA's kernels.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-deps --config-settings=cmake.define.FASTAGG_CUDA=OFF -w /wheels /source

FROM python:3.12-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /
RUN pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/*.whl)[serve]" && useradd --create-home fastagg \
    && install -d -o fastagg /state
USER fastagg
VOLUME /state
EXPOSE 8000
HEALTHCHECK CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"
ENTRYPOINT ["fastagg", "serve"]
