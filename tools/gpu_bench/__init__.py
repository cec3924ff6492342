"""Sections of tools/gpu_bench_kernels.py: name -> function that checks, times and returns figures."""

from gpu_bench import expert, roofs

SECTIONS = {"roofs": roofs.measure, "expert": expert.measure, "batches": expert.measure_batches}
