{{/* The container of vcuda: a sidecar of kube-scheduler, or alone in its pod. */}}
{{- define "vcuda.extender" -}}
{{- include "vcuda.refuseFlags" (list "scheduler.flags" .Values.scheduler.flags (include "vcuda.extenderFlags" . | fromYaml)) -}}
- name: extender
{{- if include "vcuda.isBesideKubeScheduler" . }}
  # A sidecar, so that kube-scheduler starts when the extender can answer, and ends before it.
  restartPolicy: Always
{{- end }}
  image: {{ include "vcuda.image" . }}
{{- with .Values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
{{- end }}
  args:
    - scheduler
    - --listen-port={{ .Values.scheduler.port }}
{{- if include "vcuda.asksOnLoopback" . }}
    # kube-scheduler calls this port; only containers of this pod reach its loopback.
    - --loopback-port={{ .Values.scheduler.loopbackPort }}
{{- end }}
{{- with .Values.scheduler.callers }}
{{- if .ca.name }}
    - --client-ca-file=/etc/vcuda/callers/{{ .ca.key }}
    - --client-names={{ join "," .names }}
{{- end }}
{{- end }}
{{- if include "vcuda.isBesideKubeScheduler" . }}
    # The extender in the pod of the leading kube-scheduler answers.
    - --leader-election=kube-scheduler
{{- else }}
    - --leader-election=own
{{- end }}
    - --lease-name=vcuda-scheduler
    - --scheduler-name={{ .Values.scheduler.name }}
    - --node-policy={{ .Values.scheduler.nodePolicy }}
    - --gpu-policy={{ .Values.scheduler.gpuPolicy }}
    - --node-choice={{ .Values.scheduler.nodeChoice }}
    - --reservation-time={{ .Values.scheduler.reservationTime }}
    - --gang-reservation-time={{ .Values.scheduler.gangReservationTime }}
    - --default-cores={{ .Values.webhook.defaultCores }}
    - --share-memory={{ .Values.webhook.shareMemory }}
{{- with .Values.webhook.runtimeClass }}
    - --runtime-class={{ . }}
{{- end }}
    - --hide-gpus={{ .Values.webhook.hideGpus }}
{{- if .Values.agent.enabled }}
{{- with .Values.gpuNodes }}
    - --node-label={{ first . }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.grafanaUrl }}
    - --grafana-url={{ . }}
{{- end }}
{{- if .Values.webhook.translateToClaims }}
    - --translate-to-claims=true
{{- end }}
{{- if .Values.agent.dra.enabled }}
    # What is allocated to claims is shown beside the device plugin's GPUs.
    - --dra=true
{{- end }}
{{- if include "vcuda.showsNames" . }}
    - --agent-token-file=/etc/vcuda/names/token
{{- end }}
{{- $state := include "vcuda.at" (list . "agent.stateDirectory") }}
{{- if ne $state "/etc/gpu-manager" }}
    - --state-directory={{ $state }}
{{- end }}
    - --translate-hami={{ include "vcuda.hamiScope" . }}
{{- if ne (include "vcuda.hamiScope" .) "off" }}
    - --hami-unlimited-cores={{ .Values.hami.unlimitedCores }}
{{- with .Values.hami.resources }}
    - --hami-resources=count={{ .count }},memory={{ .memory }},memory-percentage={{ .memoryPercentage }},cores={{ .cores }},priority={{ .priority }}
{{- end }}
{{- end }}
{{- if ne .Values.resourceDomain "tencent.com" }}
    - --resource-domain={{ .Values.resourceDomain }}
{{- end }}
{{- if include "vcuda.patchesWebhook" . }}
    - --webhook-configuration=vcuda-scheduler
{{- else }}
    - --webhook-configuration= # the chart or another tool writes its caBundle
{{- end }}
{{- if eq .Values.webhook.certificates.from "self" }}
    - --service-name=vcuda-scheduler
    - --certificate-secret={{ include "vcuda.certificateSecret" . }}
{{- else }}
    - --tls-cert-file=/etc/vcuda/certificate/tls.crt
    - --tls-key-file=/etc/vcuda/certificate/tls.key
{{- end }}
{{- range $flag, $value := .Values.scheduler.flags }}
    - --{{ $flag }}={{ $value }}
{{- end }}
  env:
{{- if not .Values.scheduler.hostNetwork }}
    # The name of this replica. With hostNetwork it is the host name of the node, as in kube-scheduler's Lease.
    - name: POD_NAME
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: metadata.name
{{- end }}
    - name: POD_NAMESPACE
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: metadata.namespace
{{- with .Values.scheduler.env }}
    {{- toYaml . | nindent 4 }}
{{- end }}
  ports:
    - name: https
      containerPort: {{ .Values.scheduler.port }}
  startupProbe:
    # Listing a large cluster takes some time. Both ports are open before this probe succeeds; then kube-scheduler starts.
    httpGet:
      path: /readyz
      port: https
      scheme: HTTPS
    periodSeconds: 1
    timeoutSeconds: 3
    failureThreshold: 180
  livenessProbe:
    httpGet:
      path: /healthz
      port: https
      scheme: HTTPS
    periodSeconds: 10
    timeoutSeconds: 3
    failureThreshold: 3
  readinessProbe:
    httpGet:
      path: /readyz
      port: https
      scheme: HTTPS
    periodSeconds: 5
    timeoutSeconds: 3
  resources: {{- toYaml .Values.scheduler.resources | nindent 4 }}
  securityContext: {{- include "vcuda.over" (list (include "vcuda.schedulerContainerSecurity" .) .Values.scheduler.securityContext) | nindent 4 }}
  volumeMounts:
    # Temporary files for the credentials of the service account; the image is read-only.
    - name: tmp
      mountPath: /tmp
{{- if include "vcuda.showsNames" . }}
    # For which agents tell who uses their GPUs.
    - name: names
      mountPath: /etc/vcuda/names
      readOnly: true
{{- end }}
{{- if ne .Values.webhook.certificates.from "self" }}
    - name: certificate
      mountPath: /etc/vcuda/certificate
      readOnly: true
{{- end }}
{{- if .Values.scheduler.callers.ca.name }}
    - name: callers
      mountPath: /etc/vcuda/callers
      readOnly: true
{{- end }}
{{- with .Values.scheduler.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Flags that the chart sets, and the values for them. */}}
{{- define "vcuda.extenderFlags" -}}
listen-port: scheduler.port
loopback-port: scheduler.loopbackPort
client-ca-file: scheduler.callers.ca
client-names: scheduler.callers.names
leader-election: scheduler.leaderElection
lease-name: scheduler.leaderElection
scheduler-name: scheduler.name
node-policy: scheduler.nodePolicy
gpu-policy: scheduler.gpuPolicy
node-choice: scheduler.nodeChoice
reservation-time: scheduler.reservationTime
gang-reservation-time: scheduler.gangReservationTime
default-cores: webhook.defaultCores
share-memory: webhook.shareMemory
runtime-class: webhook.runtimeClass
hide-gpus: webhook.hideGpus
translate-to-claims: webhook.translateToClaims
dra: agent.dra.enabled
agent-token-file: agent.names
state-directory: agent.stateDirectory
translate-hami: hami.translate
hami-unlimited-cores: hami.unlimitedCores
hami-resources: hami.resources
resource-domain: resourceDomain
webhook-configuration: webhook.certificates.patch
service-name: webhook.certificates.from
certificate-secret: webhook.certificates.secretName
tls-cert-file: webhook.certificates.from
tls-key-file: webhook.certificates.from
{{- end -}}
