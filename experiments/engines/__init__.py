"""The workers that compute clients' replies in a simulation: this process, processes of this machine, a Ray cluster."""
