#!/usr/bin/env bash
# Installs the other systems of time_to_threshold.py, team_threshold.py and population_peers.py, in several virtual
# environments because some pin what others need newer; pins that are not needed are left out by --no-deps.
#
#     bash benchmarks/peers/install.sh peers
#     python benchmarks/time_to_threshold.py --peers-python peers/*/bin/python
set -euo pipefail
folder=${1:?say where to, for example: bash benchmarks/peers/install.sh peers}
constraints=$(cd "$(dirname "$0")/../.." && pwd)/constraints.txt

environment() {
    echo "$1"
    python3 -m venv "$folder/$1"
    pip="$folder/$1/bin/pip --quiet --disable-pip-version-check"
    install="$pip install -c $constraints"
    $install torch "gymnasium[box2d,mujoco]==1.4.0" numpy==2.4.6
}

environment most
$install stable-baselines3==2.9.2 sbx-rl==0.28.0 skrl==2.1.1 tianshou==2.0.1 rl-games==1.6.5 torchrl==0.14.1
$install ray==2.60.0 pyarrow tensorboardX lz4 ormsgpack pydantic requests  # what RLlib imports; ray[rllib] pins gymnasium
$install threadpoolctl colorlog signal-slot-mp
$pip install --no-deps sample-factory==2.1.1

environment agilerl  # another tensordict than TorchRL's
$install agilerl==2.58.0 peft mpe2 pettingzoo

environment tune  # for population_peers.py
$install "ray[tune]==2.60.0" stable-baselines3==2.9.2

environment elegantrl  # has the name of this project
$pip install --no-deps elegantrl==0.3.6

environment xuance
$install pyyaml tqdm scipy tensorboard wandb pyglet==1.5.15 mpe2 pettingzoo
$pip install --no-deps xuance==1.4.4

environment older
$install rsl-rl-lib==5.5.1 tqdm scipy joblib scikit-learn opencv-python-headless
$pip install --no-deps gym==0.26.2 gym_notices pfrl==0.4.0 mushroom_rl==1.10.2

# PufferLib comes as source. Its setup.py downloads Box2D and raylib for browsers, already when pip asks for its name, and
# builds all environments: it is given empty archives until it can be changed, and a PATH without nvcc.
$install psutil rich rich_argparse pyro-ppl "setuptools<81" wheel ninja
mkdir -p "$folder/empty"
cat > "$folder/empty/sitecustomize.py" <<'END'
import os
import tarfile
import urllib.request
import zipfile


def retrieve_nothing(url, name):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    if name.endswith(".zip"):
        zipfile.ZipFile(name, "w").close()
    else:
        tarfile.open(name, "w:gz").close()


urllib.request.urlretrieve = retrieve_nothing
END
PYTHONPATH="$folder/empty" PATH=/usr/bin:/bin $pip download --no-deps --no-binary :all: --no-build-isolation --dest "$folder/source" pufferlib==3.0.0
tar -xzf "$folder/source/pufferlib-3.0.0.tar.gz" -C "$folder/source"
sed -i -e "s/^    download_raylib('raylib-5.5_webassembly', '.zip')/    pass/" \
    -e "s/^    download_box2d(.*)/    pass/" \
    -e "s/glob.glob('pufferlib.*binding.c', recursive=True)/['pufferlib\/ocean\/cartpole\/binding.c']/" \
    "$folder/source/pufferlib-3.0.0/setup.py"
PATH=/usr/bin:/bin $pip install --no-build-isolation --no-deps "$folder/source/pufferlib-3.0.0"
