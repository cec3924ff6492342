"""Sections of tools/gpu_bench_kernels.py: name -> function that checks, times and returns figures."""

from gpu_bench import attention, chunk, expert, prefix, roofs, rows

SECTIONS = {
    "roofs": roofs.measure,
    "rows": rows.measure,
    "expert": expert.measure,
    "expert_plans": expert.search_plans,
    "batches": expert.measure_batches,
    "products": prefix.measure_products,
    "attention": attention.measure,
    "prefix": prefix.measure_pass,
    "vision": prefix.measure_vision,
    "chunk": chunk.measure,
}
