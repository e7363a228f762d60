{{/* The securityContext of the agent's container, before the operator's own keys. */}}
{{- define "vcuda.agentSecurity" -}}
# Root: the directories and sockets of kubelet belong to root, and other users have no access.
runAsUser: 0
runAsGroup: 0
{{- if not (include "vcuda.isPrivileged" .) }}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
seccompProfile:
  type: RuntimeDefault
{{- else }}
# Privileged: NVML opens /dev/nvidiactl and /dev/nvidiaN, and the devices cgroup allows this only to a
# privileged container if no device plugin assigned the devices; also to load the kernel modules. If the
# runtime injects the driver, use the component `nvidia-runtime`, which needs no privilege.
privileged: true
readOnlyRootFilesystem: true
{{- end }}
{{- end -}}
