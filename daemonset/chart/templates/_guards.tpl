{{/* What values cannot say by themselves and the schema cannot check. Each is refused with one sentence. */}}
{{- define "vcuda.guards" -}}
{{- if not (hasKey .Values "platform") -}}
{{- fail "these are the values of an older chart, without those that this one added; upgrade with --reset-then-reuse-values instead of --reuse-values" -}}
{{- end -}}
{{- if .Chart.IsRoot -}}
{{- range $key, $_ := omit (.Values.global | default dict) "imageRegistry" -}}
{{- fail (printf "global.%s is not a value of this chart; of `global` it knows imageRegistry" $key) -}}
{{- end -}}
{{- if kindIs "bool" .Values.enabled -}}
{{- fail "`enabled` belongs to a chart that contains this one, as the `condition` of its dependency; leave it out, or set agent.enabled and scheduler.enabled" -}}
{{- end -}}
{{- else if and (kindIs "bool" .Values.enabled) (not .Values.enabled) -}}
{{- fail (printf "%s.enabled is false, but the chart that contains this one installs it all the same: in its Chart.yaml, give the dependency `condition: %s.enabled`, or leave the value out" .Chart.Name .Chart.Name) -}}
{{- end -}}
{{- range $key := list "nameOverride" "fullnameOverride" -}}
{{- if get $.Values $key -}}
{{- fail (printf "%s: the names of the objects are fixed, because a cluster has one vcuda, whose policies, rights and commands refer to them; leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- range $part := list "agent" "scheduler" -}}
{{- if hasKey (get $.Values $part).podLabels "app.kubernetes.io/name" -}}
{{- fail (printf "%s.podLabels: the selectors of the chart need app.kubernetes.io/name as it is; give another label" $part) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.webhook.translateToClaims .Values.agent.enabled (not .Values.agent.dra.enabled) -}}
{{- fail "webhook.translateToClaims turns GPU pods to claims, which no node serves without agent.dra.enabled; set both, or leave it out" -}}
{{- end -}}
{{- if and (eq (include "vcuda.at" (list . "agent.driver.from")) "emulated") .Values.agent.driver.root -}}
{{- fail "agent.driver.root is where NVIDIA's driver is, and with agent.driver.from=emulated there is none; leave one of them out" -}}
{{- end -}}
{{- if and (eq (include "vcuda.at" (list . "agent.driver.from")) "runtime") .Values.agent.driver.root -}}
{{- fail "agent.driver.root is not used with agent.driver.from=runtime, where the container runtime injects the driver; leave one of them out" -}}
{{- end -}}
{{- end -}}

{{/* Refuses to install an agent on GPUs that another device plugin offers, where the node is chosen by what discovery found and
not by its owner: kubelet may show the resource of a plugin that has ended. `helm template` sees no nodes. */}}
{{- define "vcuda.refuseOtherPlugins" -}}
{{- if .Release.IsInstall -}}
{{- range $node := lookup "v1" "Node" "" "" | dig "items" list -}}
{{- if ne (dig "metadata" "labels" "nvidia-device-enable" "" $node) "enable" -}}
{{- range $resource, $amount := dig "status" "allocatable" dict $node -}}
{{- if and (regexMatch "^nvidia[.]com/(gpu|mig-)" $resource) (ne (toString $amount) "0") (include "vcuda.isGpuNode" (list $ $node)) -}}
{{- fail (printf "gpuNodes: node %s is one of them, and another device plugin offers its GPUs as %s; a GPU could be allocated twice. Stop that plugin there and label the node nvidia-device-enable=enable, or begin with nodes that you choose: --set 'gpuNodes={nvidia-device-enable=enable}' (docs/how-to/time-slicing.md)" $node.metadata.name $resource) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses flags that the chart sets by a value, which would be given twice: (list "agent.flags" flags values-by-flag). */}}
{{- define "vcuda.refuseFlags" -}}
{{- $name := index . 0 -}}
{{- $values := index . 2 -}}
{{- range $flag, $_ := index . 1 -}}
{{- if hasKey $values $flag -}}
{{- fail (printf "%s.%s: the chart sets this flag itself; set the value %s instead" $name $flag (get $values $flag)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what needs an API that the cluster does not have: (list $ "monitoring.coreos.com/v1" "monitoring.enabled" "the Prometheus operator"). */}}
{{- define "vcuda.requireApi" -}}
{{- $api := index . 1 -}}
{{- if not ((index . 0).Capabilities.APIVersions.Has $api) -}}
{{- fail (printf "%s needs the API %s of %s, which this cluster does not have; install it first, or leave this value out (with helm template: --api-versions=%s)" (index . 2) $api (index . 3) $api) -}}
{{- end -}}
{{- end -}}

{{/* A mapping of the chart with the operator's keys over it, none twice: (list text mapping). Text alone keeps its comments. */}}
{{- define "vcuda.over" -}}
{{- if index . 1 -}}
{{- $keys := index . 0 | fromYaml -}}
{{- range $key, $value := index . 1 }}{{ $_ := set $keys $key $value }}{{ end -}}
{{- toYaml $keys -}}
{{- else -}}
{{- index . 0 | trim -}}
{{- end -}}
{{- end -}}
