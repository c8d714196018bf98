"""Hand-written gradients and kernels, each held by a test to the plain form it stands for."""
