"""The optimal factorization: its fixed point, its certificate, its recurrence and the truncation."""
