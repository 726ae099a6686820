"""Manifests of deploy/, rendered: the schemas, and the rules that schemas cannot see."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import elegantrl

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())
KUBERNETES = "1.30"
CRDS = os.environ.get("ELEGANTRL_KUBERAY_CRDS")
"""A folder with KubeRay's ray.io_rayjobs.yaml and ray.io_rayclusters.yaml, of another project and a megabyte each."""
RAY_KINDS = {"RayJob", "RayCluster"}
SPOT_NOTICE_SECONDS = 30

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlays")
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@functools.cache
def render(overlay: str) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    command = ["kubectl", "kustomize", str(DEPLOY / "overlays" / overlay)]
    return list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def cluster_of(overlay: str) -> dict[str, Any]:
    (found,) = [item for item in render(overlay) if item["kind"] in RAY_KINDS]
    return found["spec"]["rayClusterSpec"] if found["kind"] == "RayJob" else found["spec"]


def pods_of(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, pod template) of everything that the operator makes."""
    for item in render(overlay):
        if item["kind"] == "RayJob":
            yield "submitter", item["spec"]["submitterPodTemplate"]
    cluster = cluster_of(overlay)
    yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def containers_of(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods_of(overlay):
        assert "initContainers" not in pod["spec"]
        for container in pod["spec"]["containers"]:
            yield name, container


def quantity(text: str) -> float:
    """``8Gi`` in bytes."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"": 1, "Mi": 2**20, "Gi": 2**30}[unit]


# ---- schemas


@needs_kubectl
@each_overlay
def test_built_in_kinds_and_pod_templates_fit_the_schema_of_kubernetes(overlay: str) -> None:
    for item in render(overlay):
        if item["kind"] not in RAY_KINDS:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
    for name, pod in pods_of(overlay):
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **pod["metadata"]}, "spec": pod["spec"]}
        kubernetes_validate.validate(made, KUBERNETES, strict=True)


@needs_kubectl
def test_the_schema_of_kubernetes_finds_a_wrong_field() -> None:
    pod = dict(next(pods_of("cpu"))[1]["spec"], restartPolice="Never")
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, KUBERNETES, strict=True)


def close_objects(node: Any) -> None:
    """Make an OpenAPI schema refuse unknown fields, in place."""
    if isinstance(node, dict):
        if node.get("x-kubernetes-int-or-string"):
            node.clear()
            node["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        elif "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        for child in node.values():
            close_objects(child)
    elif isinstance(node, list):
        for child in node:
            close_objects(child)


@functools.cache
def kuberay_schema(kind: str) -> jsonschema.Draft7Validator:
    assert CRDS is not None
    with (Path(CRDS) / f"ray.io_{kind.lower()}s.yaml").open() as file:
        crd = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (schema,) = [v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == "v1"]
    close_objects(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(schema)


@needs_kubectl
@pytest.mark.skipif(CRDS is None, reason="ELEGANTRL_KUBERAY_CRDS names no folder with KubeRay's definitions")
def test_ray_objects_fit_the_definitions_of_kuberay() -> None:
    for overlay in OVERLAYS:
        for item in render(overlay):
            if item["kind"] in RAY_KINDS:
                assert [error.message for error in kuberay_schema(item["kind"]).iter_errors(item)] == []
    (job,) = [item for item in render("cpu") if item["kind"] == "RayJob"]
    wrong = {**job, "spec": {**job["spec"], "backofLimit": 1}}
    assert list(kuberay_schema("RayJob").iter_errors(wrong))


# ---- what the operator checks beyond schemas


@needs_kubectl
@each_overlay
def test_rules_of_the_operator(overlay: str) -> None:
    cluster = cluster_of(overlay)
    version = tuple(map(int, cluster["rayVersion"].split(".")))
    assert cluster["authOptions"] == {"mode": "token"}
    assert version >= (2, 54, 0)  # older ones let a web page delete jobs
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    assert len(set(names)) == len(names)
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["rayStartParams"] == {}  # Ray's resources come from those of the container
    for field in (
        "enableInTreeAutoscaling",
        "networkPolicy",
        "tlsOptions",
    ):  # need rights or features we do not ask for
        assert field not in cluster
    for item in render(overlay):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", item["metadata"]["name"])
        assert item["kind"] == "Namespace" or item["metadata"]["namespace"] == "elegantrl"
        if item["kind"] == "RayJob":
            assert item["spec"]["ttlSecondsAfterFinished"] == 0 or item["spec"]["shutdownAfterJobFinishes"]
            assert item["spec"]["backoffLimit"] > 0  # a lost head is a new cluster with the same entrypoint
            assert item["spec"]["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"


@needs_kubectl
@each_overlay
def test_one_version_of_ray_and_of_the_image(overlay: str) -> None:
    pinned = re.search(r"^ray==(\S+)$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and cluster_of(overlay)["rayVersion"] == pinned[1]
    assert {container["image"] for _, container in containers_of(overlay)} == {f"elegantrl:{elegantrl.__version__}"}


# ---- security


@needs_kubectl
@each_overlay
def test_pods_are_restricted(overlay: str) -> None:
    """The restricted profile of Kubernetes, a file system that is not written, and no token of its API."""
    for name, pod in pods_of(overlay):
        spec, security = pod["spec"], pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == "elegantrl"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "persistentVolumeClaim"} & volume.keys() for volume in spec["volumes"]), name
    for _, container in containers_of(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in container.get("ports", []))
    (account,) = [item for item in render(overlay) if item["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False
    (namespace,) = [item for item in render(overlay) if item["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@needs_kubectl
@each_overlay
def test_no_secret_is_in_a_manifest(overlay: str) -> None:
    assert not [item for item in render(overlay) if item["kind"] == "Secret"]
    words = re.compile(r"(?i)secret|token|password|access_key")
    for _, container in containers_of(overlay):
        assert not [entry for entry in container.get("env", []) if words.search(entry["name"])]
    for item in render(overlay):
        assert item["kind"] != "ConfigMap" or not [name for name in item["data"] if words.search(name)]


@needs_kubectl
@each_overlay
def test_the_network_policy_covers_every_pod(overlay: str) -> None:
    (policy,) = [item["spec"] for item in render(overlay) if item["kind"] == "NetworkPolicy"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    chosen = policy["podSelector"]["matchLabels"]
    for name, pod in pods_of(overlay):
        assert chosen.items() <= pod["metadata"]["labels"].items(), name
    for rule in policy["ingress"]:
        assert all("podSelector" in peer for peer in rule["from"])  # never a whole namespace, never everybody
    ports = [port["port"] for rule in policy["ingress"] if "ports" in rule for port in rule["ports"]]
    assert ports == [8265]


# ---- resources, probes, storage


@needs_kubectl
@each_overlay
def test_resources(overlay: str) -> None:
    for name, container in containers_of(overlay):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests["memory"] == limits["memory"] and "cpu" in requests
        assert "cpu" not in limits, f"{name}: throttling delays every worker"
    for name, pod in pods_of(overlay):
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) == set(volumes), name
        assert "/tmp" in mounts
        if name != "submitter":
            shared = volumes[mounts["/dev/shm"]]["emptyDir"]
            memory = quantity(container["resources"]["limits"]["memory"])
            # Ray's object store takes 30 % of the memory; the volume counts as memory of the container.
            assert shared["medium"] == "Memory" and 0.3 * memory <= quantity(shared["sizeLimit"]) <= 0.5 * memory


@needs_kubectl
@each_overlay
def test_probes_ask_what_ray_answers_without_a_token(overlay: str) -> None:
    for name, container in containers_of(overlay):
        if name == "submitter":
            continue
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            expected = ("/api/gcs_healthz", 8265) if name == "head" else ("/api/local_raylet_healthz", 52365)
            assert (asked["path"], asked["port"]) == expected


@needs_kubectl
@each_overlay
def test_volumes_and_their_claims(overlay: str) -> None:
    claims = {item["metadata"]["name"]: item for item in render(overlay) if item["kind"] == "PersistentVolumeClaim"}
    users: dict[str, list[str]] = {name: [] for name in claims}
    for name, pod in pods_of(overlay):
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                users[volume["persistentVolumeClaim"]["claimName"]].append(name)
    for claim, pods in users.items():
        assert pods, f"{claim} is used by no pod"
        assert pods == ["head"] or claims[claim]["spec"]["accessModes"] == ["ReadWriteMany"]


@needs_kubectl
def test_spot_nodes_hold_only_what_may_be_lost() -> None:
    pods = dict(pods_of("spot"))
    assert pods["head"]["spec"]["nodeSelector"] == {"pool": "on-demand"}
    assert "tolerations" not in pods["head"]["spec"] and "tolerations" not in pods["workers"]["spec"]
    assert pods["spot"]["spec"]["nodeSelector"] == {"pool": "spot"}
    assert pods["spot"]["spec"]["terminationGracePeriodSeconds"] < SPOT_NOTICE_SECONDS
    (spot,) = [group for group in cluster_of("spot")["workerGroupSpecs"] if group["groupName"] == "spot"]
    assert spot["minReplicas"] == 0


@needs_kubectl
def test_a_gpu_where_the_learner_is() -> None:
    limits = {name: container["resources"]["limits"] for name, container in containers_of("gpu")}
    assert [name for name in limits if "nvidia.com/gpu" in limits[name]] == ["head"]


@needs_kubectl
def test_the_cluster_that_stays_is_that_of_the_job() -> None:
    assert cluster_of("cluster") == cluster_of("cpu")
    assert not [item for item in render("cluster") if item["kind"] == "RayJob"]
