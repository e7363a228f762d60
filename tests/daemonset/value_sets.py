"""Values under which the chart is rendered, here and on a real API server: each choice is in one of them."""

from tests.daemonset.chart import Object

PLATFORMS = (
    "kubeadm", "k3s", "rke2", "microk8s", "k0s", "eks", "aks", "gke", "gpu-operator", "openshift", "talos",
    "bottlerocket", "kind",
)  # fmt: skip

FIRST: Object = {
    "name": "first",
    "image": "first",
    "resources": {"requests": {"cpu": "1m"}},
    "securityContext": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}

VALUE_SETS: dict[str, Object] = {
    "a driver in another place": {
        "platform": "k0s",
        "global": {"imageRegistry": "mirror.example.org:5000/all"},
        "agent": {
            "driver": {"from": "host", "root": "/run/nvidia/driver"},
            "kubelet": {"root": "/data/kubelet"},
            "stateDirectory": "/var/lib/vcuda",
            "terminationGracePeriodSeconds": 20,
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "extraInitContainers": [FIRST],
            "doctor": True,
            "podSecurityContext": {"supplementalGroups": [44]},
            "securityContext": {"seLinuxOptions": {"type": "spc_t"}},
            "annotations": {"note": "agent"},
            "podAnnotations": {"prometheus.io/scrape": "false"},
        },
        "scheduler": {
            "strategy": {"type": "Recreate"},
            "podDisruptionBudget": {"maxUnavailable": "50%"},
            "terminationGracePeriodSeconds": 60,
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "extraInitContainers": [FIRST],
            "podSecurityContext": {"runAsUser": 1000},
            "securityContext": {"seLinuxOptions": {"level": "s0"}},
            "annotations": {"note": "scheduler"},
        },
    },
    "defaults": {},
    "agent alone": {"scheduler": {"enabled": False}, "agent": {"updateStrategy": "OnDelete"}},
    "scheduler alone": {"agent": {"enabled": False}, "webhook": {"certificates": {"patch": True}}},
    "without webhook and policy": {"webhook": {"enabled": False}, "policy": {"enabled": False}},
    "claims": {
        "agent": {"dra": {"enabled": True, "gpus": ["0", "GPU-1"]}, "cdi": {"directory": "/etc/cdi"}},
        "webhook": {"translateToClaims": True},
    },
    "cert-manager": {
        "webhook": {"certificates": {"from": "cert-manager", "life": "720h", "caLife": "8760h"}},
        "monitoring": {"enabled": True},
    },
    "an issuer of the cluster": {
        "webhook": {"certificates": {"from": "cert-manager", "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}}
    },
    "a Secret of the operator": {"webhook": {"certificates": {"from": "secret", "caBundle": "Q0E="}}},
    "HAMi by other names": {
        "hami": {"translate": "all", "unlimitedCores": False, "resources": {"count": "example.com/vgpu"}}
    },
    "emulated GPUs": {"agent": {"driver": {"from": "emulated", "emulatedProfile": "laptop"}}},
    "a kube-scheduler elsewhere": {
        "scheduler": {
            "leaderElection": "own",
            "callers": {
                "ca": {"kind": "ConfigMap", "name": "callers", "key": "authority.crt"},
                "names": ["system:kube-scheduler", "scheduler.example.org"],
            },
            "networkPolicy": {
                "enabled": True,
                "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}, {"namespaceSelector": {"matchLabels": {"a": "b"}}}],
            },
        },
    },
    "the nodes' network": {
        "scheduler": {
            "hostNetwork": True,
            "callers": {"ca": {"name": "callers"}, "certificateSecret": "kube-scheduler-client"},
            "kubeScheduler": {"port": 10260},
        },
    },
    "everything else": {
        "operators": {"subjects": [{"kind": "ServiceAccount", "name": "ops", "namespace": "default"}]},
        "tenants": {"subjects": [{"kind": "Group", "name": "researchers", "apiGroup": "rbac.authorization.k8s.io"}]},
        "resourceDomain": "gpu.example.org",
        "image": {"repository": "registry.example.org/vcuda", "tag": "1", "pullSecrets": [{"name": "registry"}]},
        "agent": {
            "cdi": {"enabled": True, "directory": "/etc/cdi"},
            "containerRuntime": {"socket": "/run/crio/crio.sock"},
            "kubelet": {"root": "/data/kubelet", "devicePlugins": "/data/device-plugins", "nodesProxy": True},
            "confined": False,
            "names": "all",
            "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
            "port": 5679,
            "maxUnavailable": "10%",
            "revisionHistoryLimit": 2,
            "priorityClassName": "",
            "flags": {"sample-period": "2s", "numa": True},
            "env": [{"name": "TZ", "value": "UTC"}],
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"note": "yes"},
            "affinity": {"podAffinity": {}},
        },
        "scheduler": {
            "name": "hami-scheduler",
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "priorityClassName": "",
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "loopbackPort": 9444,
            "nodePolicy": "spread",
            "gpuPolicy": "link",
            "nodeChoice": "scheduler",
            "port": 9443,
            "flags": {"log-level": "debug"},
            "podLabels": {"team": "gpu"},
            "affinity": {"nodeAffinity": {}},
            "kubeScheduler": {
                "image": {"tag": "v1.35.1"},
                "percentageOfNodesToScore": 50,
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
    "volcano": {
        "volcano": {
            "enabled": True,
            "namespace": "volcano",
            "serviceAccount": "vc-scheduler",
            "lease": "vc-scheduler",
            "schedulerName": "vc",
            "port": 9180,
        },
        "resourceDomain": "gpu.example.org",
        "image": {"pullPolicy": "Always"},
    },
    "what installations seldom change": {
        "gpuNodes": ["pool=gpu"],
        "image": {"digest": f"sha256:{'a' * 64}", "pullPolicy": "Always"},
        "agent": {
            "shareMode": False,
            "tolerations": [],
            "priorityClassName": "ours",
            "resources": {"limits": {"cpu": "1"}},
            "driver": {"from": "runtime", "runtimeClassName": "nvidia-cdi"},
            "serviceAccountAnnotations": {"note": "agent"},
        },
        "scheduler": {
            "weight": 3,
            "reservationTime": "30s",
            "gangReservationTime": "5m",
            "httpTimeout": "5s",
            "nodeSelector": {"pool": "system"},
            "tolerations": [],
            "priorityClassName": "ours",
            "resources": {"limits": {"cpu": "2"}},
            "env": [{"name": "TZ", "value": "UTC"}],
            "podAnnotations": {"note": "scheduler"},
            "serviceAccountAnnotations": {"note": "scheduler"},
            "kubeScheduler": {
                "image": {
                    "repository": "registry.example.org/kube-scheduler",
                    "digest": f"sha256:{'b' * 64}",
                    "pullPolicy": "Always",
                },
                "qps": 50.5,
                "burst": 60,
                "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}],
                "verbosity": 4,
                "resources": {"limits": {"cpu": "2"}},
            },
        },
        "webhook": {
            "failurePolicy": "Ignore",
            "timeoutSeconds": 3,
            "reinvocationPolicy": "Never",
            "hideGpus": False,
            "certificates": {"secretName": "tls"},
        },
        "operators": {"role": False},
        "tenants": {"role": False},
        "hami": {
            "resources": {
                "memory": "example.com/mem",
                "memoryPercentage": "example.com/part",
                "cores": "example.com/cores",
                "priority": "example.com/priority",
            }
        },
        "monitoring": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "interval": "30s",
            "scrapeTimeout": "10s",
            "grafanaUrl": "https://grafana.example.org",
            "relabelings": [{"targetLabel": "cluster", "replacement": "west"}],
            "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "process_.*", "action": "drop"}],
            "kubeScheduler": False,
            "rules": {
                "enabled": True,
                "labels": {"role": "alerts"},
                "disabled": ["VcudaPodsPending"],
                "runbooks": "https://wiki.example.org/gpu",
            },
            "dashboards": {
                "enabled": True,
                "labels": {"grafana_dashboard": "yes"},
                "annotations": {"grafana_folder": "GPUs"},
            },
        },
    },
}

WITH_FOREIGN_KINDS: Object = {
    "platform": "openshift",
    "webhook": {"certificates": {"from": "cert-manager"}},
    "monitoring": {"enabled": True, "rules": {"enabled": True}},
}
"""All kinds of other projects that the chart can make objects of."""
