"""Statistics that know nothing of RL: block bootstrap, MCMC, root finding, change points."""
