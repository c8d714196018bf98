"""Hand-written gradients and kernels, each chosen in one line above its plain form."""
