"""Hand-written gradients and kernels, each chosen in one line beside the plain form it stands for."""
