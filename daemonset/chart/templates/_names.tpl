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

{{/* off, marked or all; YAML makes a truth value of `off` and `on`. */}}
{{- define "vcuda.hamiScope" -}}
{{- with .Values.hami.translate | toString -}}
{{- if eq . "false" }}off{{ else if eq . "true" }}all{{ else }}{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* CEL: whether a container names one of these resources. */}}
{{- define "vcuda.asksFor" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.resources) && (has(c.resources.limits) && c.resources.limits.exists(r, r in {{ include "vcuda.list" . }}) || has(c.resources.requests) && c.resources.requests.exists(r, r in {{ include "vcuda.list" . }})))
{{- end -}}

{{/* Not empty where the chart brings kube-scheduler and the extender stands beside it: wherever nothing else is said. */}}
{{- define "vcuda.isBesideKubeScheduler" -}}
{{- if ne (.Values.scheduler.leaderElection | toString) "own" }}yes{{ end -}}
{{- end -}}

{{/* Not empty where kube-scheduler asks on its pod's loopback, without TLS: nobody else is there, and no certificate is wanted. */}}
{{- define "vcuda.asksOnLoopback" -}}
{{- if and (include "vcuda.isBesideKubeScheduler" .) (not .Values.scheduler.hostNetwork) (not .Values.scheduler.callers.authority.name) }}yes{{ end -}}
{{- end -}}
