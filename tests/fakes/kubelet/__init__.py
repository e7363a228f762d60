"""A stand-in kubelet that speaks kubelet's protocols over real unix sockets; see `kubelet` for what it offers."""

from tests.fakes.kubelet.kubelet import Kubelet, Verdict
from tests.fakes.kubelet.options import KubeletOptions
from tests.fakes.kubelet.view import ContainerView

__all__ = ["ContainerView", "Kubelet", "KubeletOptions", "Verdict"]
