"""Every factorization of a workload beside the lower bounds, with plots and export."""
