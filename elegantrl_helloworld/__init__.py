"""HelloWorld: deep reinforcement learning in less than 1,000 lines, for reading.

Read `net.py`, `agent.py`, `env.py`, `run.py`, `demo.py` in this order, or `ppo_single_file.py` alone. The package uses
PyTorch, Gymnasium and Matplotlib and nothing of `elegantrl`. `python -m elegantrl_helloworld.demo --help` runs it.
"""
