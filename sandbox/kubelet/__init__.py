"""A stand-in kubelet that speaks kubelet's protocols over real unix sockets; see `kubelet` for what it offers."""

from sandbox.kubelet.kubelet import Kubelet, Verdict
from sandbox.kubelet.options import KubeletOptions
from sandbox.kubelet.runtime import ContainerView

__all__ = ["ContainerView", "Kubelet", "KubeletOptions", "Verdict"]
