{{/* What several templates say alike. There is one vcuda in a cluster, so the names of its objects are fixed. */}}

{{- define "vcuda.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The two resources. */}}
{{- define "vcuda.core" -}}{{ .Values.resourceDomain }}/vcuda-core{{- end -}}
{{- define "vcuda.memory" -}}{{ .Values.resourceDomain }}/vcuda-memory{{- end -}}

{{/* Users as the API server sees them, for expressions. */}}
{{- define "vcuda.agentUser" -}}system:serviceaccount:{{ .Release.Namespace }}:vcuda-agent{{- end -}}
{{- define "vcuda.schedulerUser" -}}system:serviceaccount:{{ .Release.Namespace }}:vcuda-scheduler{{- end -}}

{{/* kube-scheduler of the cluster's own version: distributions append theirs to it (v1.34.1+k3s1, v1.33.5-eks-ba24e9c). */}}
{{- define "vcuda.kubeSchedulerImage" -}}
{{- with .Values.scheduler.kubeScheduler.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" $.Capabilities.KubeVersion.Version) }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "vcuda.certificateSecret" -}}
{{ .Values.webhook.certificates.secretName }}
{{- end -}}

{{/* A list of texts as CEL writes it. */}}
{{- define "vcuda.list" -}}["{{ join "\", \"" . }}"]{{- end -}}

{{/* CEL: whether `a` names an annotation that only our programs write. */}}
{{- define "vcuda.machineWritten" -}}
{{- $domain := .Values.resourceDomain -}}
a in {{ include "vcuda.list" (list (print $domain "/predicate-time") (print $domain "/predicate-node") (print $domain "/gpu-assigned") (print $domain "/vcuda-allocation")) }} || a.startsWith("{{ $domain }}/predicate-gpu-idx-")
{{- end -}}

{{/* The resources that make a pod ours to look at. */}}
{{- define "vcuda.resources" -}}
{{- $names := list (include "vcuda.core" .) (include "vcuda.memory" .) -}}
{{- if .Values.hami.translate -}}
{{- with .Values.hami.resources -}}
{{- $names = concat $names (list .count .memory .memoryPercentage .cores .priority) -}}
{{- end -}}
{{- end -}}
{{ include "vcuda.list" $names }}
{{- end -}}
