"""The introductory package of the documents; its modules are found by ``elegantrl.compat.paths``."""

import elegantrl as _elegantrl  # noqa: F401  whose finder resolves elegantrl_helloworld.demo
