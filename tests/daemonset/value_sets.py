"""Values under which the chart is rendered, here and on a real API server: each choice is in one of them."""

from tests.daemonset.chart import Object

VALUE_SETS: dict[str, Object] = {
    "defaults": {},
    "agent alone": {"scheduler": {"enabled": False}},
    "scheduler alone": {"agent": {"enabled": False}},
    "without webhook and policy": {"webhook": {"enabled": False}, "policy": {"enabled": False}},
    "cert-manager": {"webhook": {"certificates": {"from": "cert-manager"}}, "monitoring": {"enabled": True}},
    "an issuer of the cluster": {
        "webhook": {"certificates": {"from": "cert-manager", "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}}
    },
    "a Secret of the operator": {"webhook": {"certificates": {"from": "secret", "caBundle": "Q0E="}}},
    "HAMi by other names": {
        "hami": {"translate": "all", "unlimitedCores": False, "resources": {"count": "example.com/vgpu"}}
    },
    "emulated GPUs": {"agent": {"driver": {"from": "emulated", "emulatedProfile": "laptop"}}},
    "everything else": {
        "operators": {"subjects": [{"kind": "ServiceAccount", "name": "ops", "namespace": "default"}]},
        "resourceDomain": "gpu.example.org",
        "image": {"repository": "registry.example.org/vcuda", "tag": "1", "pullSecrets": [{"name": "registry"}]},
        "agent": {
            "cdi": {"enabled": True, "directory": "/etc/cdi"},
            "containerRuntime": {"socket": "/run/crio/crio.sock"},
            "kubelet": {"root": "/data/kubelet", "nodesProxy": True},
            "confined": True,
            "port": 5679,
            "maxUnavailable": "10%",
            "flags": {"sample-period": "2s", "numa": True},
            "env": [{"name": "TZ", "value": "UTC"}],
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"note": "yes"},
            "affinity": {"nodeAffinity": {}},
        },
        "scheduler": {
            "name": "hami-scheduler",
            "replicas": 1,
            "nodePolicy": "fragmentation",
            "gpuPolicy": "link",
            "nodeChoice": "scheduler",
            "port": 9443,
            "flags": {"log-level": "debug"},
            "podLabels": {"team": "gpu"},
            "affinity": {"nodeAffinity": {}},
            "kubeScheduler": {
                "percentageOfNodesToScore": 100,
                "featureGates": {"GenericWorkload": True, "GangScheduling": True},
                "plugins": {"score": {"disabled": [{"name": "ImageLocality"}]}},
                "rules": [
                    {
                        "apiGroups": ["scheduling.x-k8s.io"],
                        "resources": ["podgroups"],
                        "verbs": ["get", "list", "watch"],
                    }
                ],
                "flags": {"kube-api-content-type": "application/json"},
            },
        },
        "webhook": {
            "excludedNamespaces": ["monitoring"],
            "defaultCores": 0,
            "shareMemory": 16,
            "runtimeClass": "nvidia",
            "namespaceSelector": [{"key": "gpu", "operator": "Exists"}],
            "objectSelector": [{"key": "gpu", "operator": "Exists"}],
        },
        "hami": {"translate": "off"},
    },
}
