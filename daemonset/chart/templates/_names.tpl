{{/* Definitions for several templates. A cluster has one vcuda, so the names of its objects are fixed. */}}

{{- define "vcuda.image" -}}
{{- with .Values.image -}}
{{ include "vcuda.repository" (list $ .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The two resources. */}}
{{- define "vcuda.core" -}}{{ .Values.resourceDomain }}/vcuda-core{{- end -}}
{{- define "vcuda.memory" -}}{{ .Values.resourceDomain }}/vcuda-memory{{- end -}}
{{- define "vcuda.memoryMib" -}}{{ .Values.resourceDomain }}/vcuda-memory-mib{{- end -}}

{{/* Not empty if the agent writes CDI files. */}}
{{- define "vcuda.usesCdi" -}}
{{- if or .Values.agent.cdi.enabled .Values.agent.dra.enabled }}yes{{ end -}}
{{- end -}}

{{/* Users as the API server sees them, for expressions. */}}
{{- define "vcuda.agentUser" -}}system:serviceaccount:{{ .Release.Namespace }}:vcuda-agent{{- end -}}
{{- define "vcuda.schedulerUser" -}}system:serviceaccount:{{ .Release.Namespace }}:vcuda-scheduler{{- end -}}

{{- define "vcuda.volcanoUser" -}}system:serviceaccount:{{ .Values.volcano.namespace }}:{{ .Values.volcano.serviceAccount }}{{- end -}}

{{/* CEL: whether an agent asks, in any namespace: kustomize can move its account, and changes no expression. */}}
{{- define "vcuda.isAgent" -}}
request.userInfo.username.startsWith("system:serviceaccount:") && request.userInfo.username.endsWith(":vcuda-agent")
{{- end -}}

{{/* kube-scheduler in the version of the cluster. Distributions append a suffix (v1.34.1+k3s1, v1.33.5-eks-ba24e9c), Argo CD
leaves out the patch number (1.36): the first release of a minor version always exists and is not newer than the API server. */}}
{{- define "vcuda.kubeSchedulerImage" -}}
{{- with .Values.scheduler.kubeScheduler.image -}}
{{ include "vcuda.repository" (list $ .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (include "vcuda.clusterVersion" $) }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "vcuda.clusterVersion" -}}
{{- with semver .Capabilities.KubeVersion.Version -}}
v{{ .Major }}.{{ .Minor }}.{{ .Patch }}
{{- end -}}
{{- end -}}

{{/* A repository, in the registry of global.imageRegistry if that is set: (list $ repository). */}}
{{- define "vcuda.repository" -}}
{{- $repository := index . 1 -}}
{{- with ((index . 0).Values.global | default dict).imageRegistry -}}
{{ trimSuffix "/" . }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "" }}
{{- else -}}
{{ $repository }}
{{- end -}}
{{- end -}}

{{/* Helm's standard labels, for objects and not for the pods in them, which a new version of the chart would restart: (list $ name). */}}
{{- define "vcuda.labels" -}}
{{- $root := index . 0 -}}
{{- include "vcuda.guards" $root -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/part-of: vcuda
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | regexFind "^.*[A-Za-z0-9]" }}
{{- end -}}

{{- define "vcuda.certificateSecret" -}}
{{ .Values.webhook.certificates.secretName }}
{{- end -}}

{{/* What the API server adds to the `matchConstraints` of a policy. Server-side apply compares all of it as one field, so what is
left out is a conflict for another manager. So it is with `scope`, with fieldRef's `apiVersion`, with empty lists, which are
not stored, and with `action` in the monitors' relabelings (tests/daemonset/test_two_managers.py). */}}
{{- define "vcuda.matchesAll" -}}
matchPolicy: Equivalent
namespaceSelector: {}
objectSelector: {}
{{- end -}}

{{/* CEL: whether a kubelet asks. */}}
{{- define "vcuda.isKubelet" -}}
request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.groups
{{- end -}}

{{/* CEL: whether vcuda's scheduler asks, in any namespace, as `vcuda.isAgent`. */}}
{{- define "vcuda.isScheduler" -}}
request.userInfo.username.startsWith("system:serviceaccount:") && request.userInfo.username.endsWith(":vcuda-scheduler")
{{- end -}}

{{/* Not empty if the scheduler writes the caBundle of the webhook configuration, and not the chart. */}}
{{- define "vcuda.patchesWebhook" -}}
{{- with .Values.webhook }}{{ if and .enabled (eq .certificates.from "self") .certificates.patch }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* A list of strings in CEL. */}}
{{- define "vcuda.list" -}}["{{ join "\", \"" . }}"]{{- end -}}

{{/* CEL: whether `a` names an annotation that only vcuda writes. */}}
{{- define "vcuda.machineWritten" -}}
{{- $domain := .Values.resourceDomain -}}
a in {{ include "vcuda.list" (list (print $domain "/predicate-time") (print $domain "/predicate-node") (print $domain "/gpu-assigned") (print $domain "/vcuda-allocation") (print $domain "/vcuda-decision")) }} || a.startsWith("{{ $domain }}/predicate-gpu-idx-")
{{- end -}}

{{/* The keys of the labels that the agent writes on its node, one a line: its own, and those of --node-labels. */}}
{{- define "vcuda.nodeLabels" -}}
{{- $domain := .Values.resourceDomain -}}
{{- range list "gpu-model" "gpu-count" "gpu-memory" "gpu-driver" "gpu-cuda" }}
{{ print $domain "/" . }}
{{- end }}
gaia.tencent.com/gpu-model
{{- range index .Values.agent.flags "node-labels" | default "" | toString | splitList "," }}
{{- with splitList "=" . | first | trim }}
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* off, marked or all; YAML reads `off` and `on` as booleans. */}}
{{- define "vcuda.hamiScope" -}}
{{- with .Values.hami.translate | toString -}}
{{- if eq . "false" }}off{{ else if eq . "true" }}all{{ else }}{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* CEL: whether a container names one of these resources. */}}
{{- define "vcuda.asksFor" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.resources) && (has(c.resources.limits) && c.resources.limits.exists(r, r in {{ include "vcuda.list" . }}) || has(c.resources.requests) && c.resources.requests.exists(r, r in {{ include "vcuda.list" . }})))
{{- end -}}

{{/* Not empty if the chart installs kube-scheduler with the extender in the same pod, which is the default. */}}
{{- define "vcuda.isBesideKubeScheduler" -}}
{{- if ne (.Values.scheduler.leaderElection | toString) "own" }}yes{{ end -}}
{{- end -}}

{{/* Not empty if kube-scheduler calls the extender on the loopback of its pod, without TLS. */}}
{{- define "vcuda.asksOnLoopback" -}}
{{- if and (include "vcuda.isBesideKubeScheduler" .) (not .Values.scheduler.hostNetwork) (not .Values.scheduler.callers.ca.name) }}yes{{ end -}}
{{- end -}}

{{/* How each endpoint is scraped. `job` and `node` are the labels that the rules and dashboards expect. */}}
{{- define "vcuda.scrape" -}}
{{- $monitoring := .root.Values.monitoring -}}
interval: {{ $monitoring.interval }}
{{- with $monitoring.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  - action: replace
    targetLabel: job
    replacement: {{ .job }}
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
{{- with $monitoring.relabelings }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $monitoring.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Not empty if Prometheus also scrapes the chart's own kube-scheduler. */}}
{{- define "vcuda.scrapesKubeScheduler" -}}
{{- if and .Values.monitoring.kubeScheduler (include "vcuda.isBesideKubeScheduler" .) }}yes{{ end -}}
{{- end -}}

{{/* agent.affinity, in which the pods are also bound to gpuNodes: each of these, with each required term of the operator. */}}
{{- define "vcuda.agentAffinity" -}}
{{- $affinity := deepCopy .Values.agent.affinity -}}
{{- if .Values.gpuNodes -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $given := $required.nodeSelectorTerms | default (list dict) -}}
{{- range $labels := $.Values.gpuNodes -}}
{{- $expressions := $given.matchExpressions | default list -}}
{{- range splitList "," $labels -}}
{{- $pair := splitList "=" . -}}
{{- $expression := dict "key" (first $pair) "operator" (ternary "In" "Exists" (contains "=" .)) -}}
{{- with rest $pair }}{{ $_ := set $expression "values" . }}{{ end -}}
{{- $expressions = append $expressions $expression -}}
{{- end -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) $given) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* Not empty if the scheduler shows agents the token for names of pods. */}}
{{- define "vcuda.showsNames" -}}
{{- if and .Values.agent.enabled (eq .Values.agent.names "token") }}yes{{ end -}}
{{- end -}}

{{/* Not empty for a node with one of gpuNodes, or where there are none: (list $ node). */}}
{{- define "vcuda.isGpuNode" -}}
{{- $found := index . 1 | dig "metadata" "labels" dict -}}
{{- if not (index . 0).Values.gpuNodes }}yes{{ end -}}
{{- range $labels := (index . 0).Values.gpuNodes -}}
{{- $all := true -}}
{{- range splitList "," $labels -}}
{{- $key := splitList "=" . | first -}}
{{- $all = and $all (hasKey $found $key) (or (not (contains "=" .)) (eq . (printf "%s=%s" $key (get $found $key)))) -}}
{{- end -}}
{{- if $all }}yes{{ end -}}
{{- end -}}
{{- end -}}
