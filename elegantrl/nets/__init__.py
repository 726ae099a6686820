"""Networks: layers, distributions, the policies that travel to workers, and critics."""
