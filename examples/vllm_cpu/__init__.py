"""What the CPU build of vLLM needs to take part in the examples: weights that arrive without a GPU, and its own CLI.

`shared_file.py` is a weight transfer through a file in shared memory. vLLM loads it in each of its processes by the
entry point in `plugin/`, which is found because `environment.py` puts that folder on the path that child processes
inherit; nothing is installed. `python -m examples.vllm_cpu serve MODEL ...` is vLLM's own command line.
"""
