"""Which cluster, and as whom: a kubeconfig, or the account of the pod that madlite is in → a client of its API."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Value
from madlite.platforms.kubernetes.settings import KubernetesSettings

_HINT = "pip install 'madlite[kubernetes]'"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Access(Value, frozen=True):
    """What a client is of: kubeconfig and context, both "" in a pod, and the namespace.

    The context is by its name, also where the kubeconfig's current one was meant: that may be another one later.
    `kubeconfig` is "" too where $KUBECONFIG names several files.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = "default"


def connect(settings: KubernetesSettings) -> tuple[Any, Access]:
    """Return a dynamic client of the cluster that the settings or the kubeconfig name, and which that is.

    It takes and gives objects as JSON has them, and never asks the cluster which kinds it has.

    Raises:
        RuntimeProblem: there is no client, or no such kubeconfig.
    """
    try:
        from kubernetes import client, config, dynamic
    except ImportError:
        raise RuntimeProblem("the client of Kubernetes is not installed", _HINT, cause=Cause.ENGINE) from None
    from urllib3 import Retry, disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    disable_warnings(InsecureRequestWarning)  # of each call, where the kubeconfig says that it is wanted
    made = partial(dynamic.DynamicClient, discoverer=lambda client, cache_file: None)
    own = client.Configuration()
    own.retries = Retry(total=0)  # who calls decides how long a server is waited for
    file, context = settings.kubeconfig or None, settings.context or None
    try:
        config.load_kube_config(config_file=file, context=context, client_configuration=own, persist_config=False)
        contexts, active = config.list_kube_config_contexts(config_file=file)
    except config.ConfigException as error:
        if file or context:
            what = f"the kubeconfig cannot be used: {error}"
            raise RuntimeProblem(what, "kubectl config get-contexts", cause=Cause.ENGINE) from None
        access = _inside(config, own, settings, error)
        return made(client.ApiClient(own)), access
    chosen = next((one for one in contexts if one["name"] == context), active)
    namespace = settings.namespace or chosen["context"].get("namespace") or "default"
    access = Access(kubeconfig=settings.kubeconfig or _default_file(), context=chosen["name"], namespace=namespace)
    return made(client.ApiClient(own)), access


def _default_file() -> str:
    """Return the file that the client takes where none is named; "" where these are several."""
    from kubernetes.config import KUBE_CONFIG_DEFAULT_LOCATION

    if os.pathsep in KUBE_CONFIG_DEFAULT_LOCATION:
        return ""
    return str(Path(KUBE_CONFIG_DEFAULT_LOCATION).expanduser().absolute())


def _inside(config: Any, own: Any, settings: KubernetesSettings, error: Exception) -> Access:
    """Set up the client of a process that runs in a pod itself."""
    try:
        config.load_incluster_config(client_configuration=own)
    except config.ConfigException:
        what = f"no cluster is known: {error}"
        hint = "KUBECONFIG or k8s.kubeconfig names the file of one"
        raise RuntimeProblem(what, hint, cause=Cause.ENGINE) from None
    here = _ACCOUNT.read_text(encoding="utf-8").strip() if _ACCOUNT.is_file() else ""
    return Access(namespace=settings.namespace or here or "default")
