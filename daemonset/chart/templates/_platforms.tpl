{{/* What platforms.yaml says of the platform, and what follows from it. */}}

{{/* A value that platforms.yaml knows: the operator's, else the platform's, else the default: (list $ "agent.kubelet.root"). */}}
{{- define "vcuda.at" -}}
{{- $root := index . 0 -}}
{{- $path := index . 1 -}}
{{- $given := $root.Values -}}
{{- range splitList "." $path }}{{ $given = get $given . }}{{ end -}}
{{- $platforms := $root.Files.Get "platforms.yaml" | fromYaml -}}
{{- $given | default (get (get $platforms ($root.Values.platform | default "default")) $path) | default (get $platforms.default $path) -}}
{{- end -}}

{{/* Not empty on OpenShift. */}}
{{- define "vcuda.isOpenShift" -}}
{{- if or (eq .Values.platform "openshift") (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}yes{{ end -}}
{{- end -}}

{{/* Not empty if the agent's container is privileged. */}}
{{- define "vcuda.isPrivileged" -}}
{{- if eq (include "vcuda.at" (list . "agent.driver.from")) "host" }}yes{{ end -}}
{{- end -}}
