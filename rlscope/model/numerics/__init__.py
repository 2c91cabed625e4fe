"""Statistics independent of RL: block bootstrap, MCMC, root finding, change points."""
