{{/* The unmodified kube-scheduler, which calls the extender in the same pod. */}}
{{- define "vcuda.kubeScheduler" -}}
{{- $group := "scheduler.kubeScheduler" -}}
{{- $ours := dict "config" (print $group ".plugins and .pluginConfig") "secure-port" (print $group ".port") "v" (print $group ".verbosity") "feature-gates" (print $group ".featureGates") -}}
{{- include "vcuda.refuseFlags" (list (print $group ".flags") .Values.scheduler.kubeScheduler.flags $ours) -}}
- name: kube-scheduler
  image: {{ include "vcuda.kubeSchedulerImage" . }}
{{- with .Values.scheduler.kubeScheduler.image.pullPolicy }}
  imagePullPolicy: {{ . }}
{{- end }}
  command:
    - kube-scheduler
    - --config=/etc/vcuda/scheduler/kube-scheduler.yaml
{{- if not (hasKey .Values.scheduler.kubeScheduler.flags "profiling") }}
    - --profiling=false
{{- end }}
    - --secure-port={{ .Values.scheduler.kubeScheduler.port }}
    - --v={{ .Values.scheduler.kubeScheduler.verbosity }}
{{- with .Values.scheduler.kubeScheduler.featureGates }}
    - --feature-gates={{ $gates := list }}{{ range $gate, $on := . }}{{ $gates = append $gates (printf "%s=%t" $gate $on) }}{{ end }}{{ join "," $gates }}
{{- end }}
{{- range $flag, $value := .Values.scheduler.kubeScheduler.flags }}
    - --{{ $flag }}={{ $value }}
{{- end }}
  ports:
    - name: scheduler
      containerPort: {{ .Values.scheduler.kubeScheduler.port }}
  # No readiness probe: the other container serves the webhook and does not wait for this one.
  livenessProbe:
    httpGet:
      path: {{ if semverCompare ">=1.31.0-0" .Capabilities.KubeVersion.Version }}/livez{{ else }}/healthz{{ end }}
      port: scheduler
      scheme: HTTPS
    initialDelaySeconds: 10
    periodSeconds: 10
    timeoutSeconds: 15
    failureThreshold: 8
  resources: {{- toYaml .Values.scheduler.kubeScheduler.resources | nindent 4 }}
  securityContext: {{- include "vcuda.over" (list (include "vcuda.schedulerContainerSecurity" .) .Values.scheduler.securityContext) | nindent 4 }}
  volumeMounts:
    - name: configuration
      mountPath: /etc/vcuda/scheduler
      readOnly: true
{{- if not (include "vcuda.asksOnLoopback" .) }}
    - name: ca
      mountPath: /etc/vcuda/ca
      readOnly: true
    - name: client
      mountPath: /etc/vcuda/client
      readOnly: true
{{- end }}
{{- end -}}
