"""phyai_kernels: one file per operation: formula, plain reference, Triton kernel."""
