"""Networks: layers, distributions, the policies that are sent to workers, and critics."""
