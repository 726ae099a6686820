"""A network of your own, without an agent of your own: any module that maps a vector to outputs.

python examples/own_network.py
elegantrl train sac Pendulum-v1 --agent.network examples.own_network:Residual   # the same
"""

from __future__ import annotations

from torch import Tensor, nn

import elegantrl
from elegantrl.nets.networks import NetSpec
from elegantrl.types import Leaf


class Residual(nn.Module):
    """Layers whose inputs are added to their outputs.

    An agent builds one for its policy and one for each critic. ``inputs`` says shape and type of what it gets: an
    observation, or features and actions side by side for the critics of SAC. ``net`` has the settings of all networks,
    such as ``hidden``. ``head_gain`` is a scale for the weights of the last layer, and ``normed`` says that the setting
    ``layer_norm`` is on; this network uses neither.
    """

    def __init__(self, inputs: Leaf, num_outputs: int, net: NetSpec, head_gain: float = 1.0, normed: bool = False):
        super().__init__()
        width, *others = net.hidden
        self.first = nn.Linear(inputs.shape[0], width)
        blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in others]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:  # [B, I] -> [B, num_outputs]
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]


if __name__ == "__main__":
    run = elegantrl.train("sac", "Pendulum-v1", network=Residual, hidden=(64, 64, 64), max_steps=6000)
    print(f"best return {run.best_return:.0f} in {run.summary['wall_seconds']:.0f} s, see {run.run_dir}")
