"""The optimal factorization in O(T): its fixed point, its certificate, its recurrence and the truncation."""
