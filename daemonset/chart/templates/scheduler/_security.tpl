{{/* The securityContext of the scheduler's pods, before the operator's own keys. OpenShift gives each namespace its own UIDs. */}}
{{- define "vcuda.schedulerSecurity" -}}
runAsNonRoot: true
{{- if not (include "vcuda.isOpenShift" .) }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* That of both containers. */}}
{{- define "vcuda.schedulerContainerSecurity" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{/* The annotations of the scheduler's pods, before the operator's own. */}}
{{- define "vcuda.schedulerAnnotations" -}}
{{- if include "vcuda.isBesideKubeScheduler" . -}}
# Otherwise `kubectl logs` shows kube-scheduler.
kubectl.kubernetes.io/default-container: extender
# kube-scheduler reads its configuration only when it starts.
vcuda/configuration: {{ (include (print $.Template.BasePath "/scheduler/configmap.yaml") . | fromYaml).data | toJson | sha256sum | trunc 16 | quote }}
{{- end -}}
{{- end -}}
