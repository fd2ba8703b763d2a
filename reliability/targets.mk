# Long-running reliability checks, which write reliability/results. They are described in reliability/README.md. Variables:
#   CASES    number of random inputs               make CASES=500 fuzz
#   TARGETS  GPUs to compile the kernels for       make TARGETS="cuda:75:32 hip:gfx942:64" compiled
#   PEERS    sources of other libraries            make PEERS="../pytorch_scatter ../pytorch3d" foreign
#   PYTHONS  interpreters for versions and wheels  make PYTHONS="python3.10 python3.12" TORCH="torch==2.6.0" versions
PYTHONS ?= $(PYTHON)
RESULTS := reliability/results

.PHONY: asan ubsan tsan compiled concurrency fuzz properties precision audit corpus fuzz-files faults sizes foreign networks versions wheels

sanitizer_asan := address
sanitizer_ubsan := undefined
sanitizer_tsan := thread
asan ubsan tsan: $(VENV)/installed
	$(BIN)/python -c "import nanobind" 2>/dev/null || $(BIN)/python -m pip install --quiet "nanobind>=2.4"
	$(BIN)/python -m reliability.cpu.sanitize $(sanitizer_$@) --out $(RESULTS)/sanitizers.json

compiled: $(VENV)/installed
	$(BIN)/python -m reliability.gpu.compiled record out/launches.json
	$(BIN)/python -m reliability.gpu.compiled compile out/launches.json $(or $(TARGETS),cuda:80:32 cuda:90:32) --out $(RESULTS)/compiled.json

concurrency: $(VENV)/installed
	$(BIN)/python -m reliability.cpu.concurrency --rounds 200 --out $(RESULTS)/concurrency.json

# The C++ kernels, then fewer inputs for the Triton kernels, since Triton's interpreter is slow.
fuzz: $(VENV)/installed
	$(BIN)/python -m reliability.fuzz --cases $(or $(CASES),10000) --out $(RESULTS)/fuzz.json
	$(BIN)/python -m reliability.fuzz --cases $$((($(or $(CASES),10000) + 99) / 100)) --backend triton --out $(RESULTS)/fuzz_triton.json

properties: $(VENV)/installed
	$(BIN)/python -m reliability.numbers.properties --cases $(or $(CASES),100) --out $(RESULTS)/properties.json

precision: $(VENV)/installed
	$(BIN)/python -m reliability.numbers.precision --out $(RESULTS)/precision.json

audit: $(VENV)/installed
	$(BIN)/python -m reliability.numbers.audit --out $(RESULTS)/audit.json

corpus: $(VENV)/installed
	$(BIN)/python -m reliability.files.corpus --out $(RESULTS)/corpus.json

fuzz-files: $(VENV)/installed
	$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m reliability.files.fuzz --out $(RESULTS)/fuzz_files.json

faults: $(VENV)/installed
	$(BIN)/python -m reliability.training.faults --out $(RESULTS)/faults.json

sizes: $(VENV)/installed
	$(BIN)/python -m reliability.sizes --out $(RESULTS)/sizes_cpu.json

# xxhash and psutil are needed by PyG.
foreign: $(VENV)/installed
	$(BIN)/python -c "import xxhash, psutil" 2>/dev/null || $(BIN)/python -m pip install --quiet xxhash psutil
	$(BIN)/python -m reliability.foreign $(PEERS) --out $(RESULTS)/foreign.json

networks: $(VENV)/installed
	$(BIN)/python -c "import torch_pointcloud" 2>/dev/null || $(BIN)/python -m pip install --quiet torch-pointcloud
	$(BIN)/python -m reliability.foreign.networks --out $(RESULTS)/networks.json
	$(BIN)/python -m reliability.foreign.logits

versions:
	reliability/install/versions.sh "$(TORCH)" $(PYTHONS)

wheels:
	reliability/install/wheels.sh "$(TORCH)" $(PYTHONS)
