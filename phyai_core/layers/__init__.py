"""Building blocks of policy networks in plain torch. Activations are [B, T, ...]; shapes are static."""
