{{/* The agent's container. */}}
{{- define "vcuda.agentContainer" -}}
{{- $emulated := "/run/vcuda/emulated" }}
{{- $from := include "vcuda.at" (list . "agent.driver.from") }}
{{- $driver := include "vcuda.at" (list . "agent.driver.root") }}
{{- $kubelet := include "vcuda.at" (list . "agent.kubelet.root") }}
{{- $socket := include "vcuda.at" (list . "agent.containerRuntime.socket") }}
{{- $state := include "vcuda.at" (list . "agent.stateDirectory") -}}
- name: agent
  image: {{ include "vcuda.image" . }}
{{- with .Values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
{{- end }}
  args:
    - agent
    - --share-mode={{ .Values.agent.shareMode }}
{{- if not (hasKey .Values.agent.flags "query-addr") }}
    - --query-addr=0.0.0.0
{{- end }}
{{- if eq $from "runtime" }}
    - --container-runtime-endpoint=
{{- else if eq $from "host" }}
    - --driver-root=/host{{ if ne $driver "/" }}/{{ base $driver }}{{ end }}
{{- if not (hasKey .Values.agent.flags "virtual-manager-tmpfs") }}
    - --virtual-manager-tmpfs=true
{{- end }}
{{- else }}
    - --device-root={{ $emulated }}
{{- end }}
{{- if not (hasKey .Values.agent.flags "wait-for-driver") }}
    - --wait-for-driver=true
{{- end }}
{{- if not (hasKey .Values.agent.flags "display-socket") }}
    - --display-socket=/run/vcuda/display.sock
{{- end }}
{{- if eq .Values.agent.names "token" }}
    - --query-names=false
    - --query-token-file=/etc/vcuda/names/token
{{- end }}
{{- if ne (int .Values.agent.port) 5678 }}
    - --query-port={{ .Values.agent.port }}
{{- end }}
{{- if ne .Values.resourceDomain "tencent.com" }}
    - --resource-domain={{ .Values.resourceDomain }}
{{- end }}
{{- if ne $state "/etc/gpu-manager" }}
    - --driver-mirror-path={{ $state }}/vdriver
    - --checkpoint-path={{ $state }}/checkpoint
    - --virtual-manager-path={{ $state }}/vm
{{- end }}
{{- if ne $kubelet "/var/lib/kubelet" }}
    - --kubelet-root={{ $kubelet }}
{{- end }}
{{- if ne .Values.agent.kubelet.devicePlugins "/var/lib/kubelet/device-plugins" }}
    - --device-plugin-path={{ .Values.agent.kubelet.devicePlugins }}
{{- end }}
{{- if and (ne $from "runtime") (ne $socket "/run/containerd/containerd.sock") }}
    - --container-runtime-endpoint={{ $socket }}
{{- end }}
{{- if .Values.volcano.enabled }}
    - --volcano-scheduler={{ .Values.volcano.schedulerName }}
{{- end }}
{{- if .Values.agent.dra.enabled }}
    - --dra=true
{{- with .Values.agent.dra.gpus }}
    - --dra-gpus={{ join "," . }}
{{- end }}
{{- end }}
{{- if .Values.agent.cdi.enabled }}
    - --cdi=true
{{- end }}
{{- if include "vcuda.usesCdi" . }}
{{- if ne .Values.agent.cdi.directory "/var/run/cdi" }}
    - --cdi-dir={{ .Values.agent.cdi.directory }}
{{- end }}
{{- end }}
{{- range $flag, $value := .Values.agent.flags }}
    - --{{ $flag }}={{ $value }}
{{- end }}
  env:
    - name: NODE_NAME
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: spec.nodeName
    - name: NODE_IP
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: status.hostIP
{{- if eq $from "runtime" }}
    - name: NVIDIA_VISIBLE_DEVICES
      value: all
    - name: NVIDIA_DRIVER_CAPABILITIES
      value: all # not only NVML: what the runtime brings here is what the mirror gives to other containers
{{- end }}
{{- if eq $from "emulated" }}
    - name: VCUDA_EMULATOR_PROFILE
      value: /opt/vcuda/emulator/profiles/{{ .Values.agent.driver.emulatedProfile }}.profile
    - name: VCUDA_EMULATOR_STATE
      value: {{ $emulated }}/state
{{- end }}
{{- with .Values.agent.env }}
    {{- toYaml . | nindent 4 }}
{{- end }}
  ports:
    - name: http
      containerPort: {{ .Values.agent.port }}
  livenessProbe:
    # Fails if the agent's servers do not answer; never because of an unhealthy GPU or a missing kubelet.
    httpGet:
      path: /healthz
      port: http
    initialDelaySeconds: 5
    periodSeconds: 10
    timeoutSeconds: 3
    failureThreshold: 3
  readinessProbe:
    httpGet:
      path: /readyz
      port: http
    periodSeconds: 5
    timeoutSeconds: 3
  resources: {{- toYaml .Values.agent.resources | nindent 4 }}
  securityContext: {{- include "vcuda.over" (list (include "vcuda.agentSecurity" .) .Values.agent.securityContext) | nindent 4 }}
  volumeMounts:
    # The plugin's sockets, kubelet's socket and its checkpoint.
    - name: device-plugins
      mountPath: {{ .Values.agent.kubelet.devicePlugins }}
{{- if .Values.agent.dra.enabled }}
    # The socket on which kubelet prepares claims.
    - name: kubelet-plugins
      mountPath: {{ $kubelet }}/plugins
    # Kubelet's record of claims. The directory: kubelet replaces the file, and a mount of the file alone would always show
    # the old one.
    - name: kubelet
      mountPath: {{ $kubelet }}
      readOnly: true
{{- end }}
    # Where kubelet finds the plugin's sockets after a restart.
    - name: plugins-registry
      mountPath: {{ $kubelet }}/plugins_registry
    # Kubelet's view of which container has which device.
    - name: pod-resources
      mountPath: {{ $kubelet }}/pod-resources
      readOnly: true
{{- if ne $from "runtime" }}
    # kubelet.crt, which verifies https://NODE_IP:10250 if kubelet signed its own certificate.
    - name: kubelet-pki
      mountPath: {{ $kubelet }}/pki
      readOnly: true
{{- end }}
    # The journal, the directories of containers and the driver mirror. The path is the same on both sides, because
    # Allocate tells kubelet these paths.
    - name: state
      mountPath: {{ $state }}
{{- if eq $from "host" }}
      # The agent mounts a tmpfs in it, at vm. Kubelet and the runtime see it, and so does the next agent.
      mountPropagation: Bidirectional
{{- end }}
    # display.sock, for tools on the node.
    - name: run
      mountPath: /run/vcuda
{{- if ne $from "emulated" }}
    # The device nodes of GPUs, including those that appear later.
    - name: dev
      mountPath: /dev
{{- end }}
{{- if eq $from "host" }}
{{- if ne $driver "/" }}
    # The directory in which the driver's own one appears: a driver container mounts it there, or an installer makes
    # it, also after this pod has started.
    - name: driver
      mountPath: /host
      mountPropagation: HostToContainer
      readOnly: true
{{- else }}
    # The driver of the node: libraries and programs for the mirror, and nvidia-modprobe.
    - name: host-usr
      mountPath: /host/usr
      readOnly: true
    # For modprobe, if the driver is installed and not loaded.
    - name: modules
      mountPath: /lib/modules
      readOnly: true
    # ld.so.cache, which lists the libraries of the driver, and Debian's alternatives. The whole directory:
    # ldconfig replaces the file, and a mount of the file alone would always show the old one.
    - name: host-etc
      mountPath: /host/etc
      readOnly: true
{{- end }}
{{- end }}
    # Which processes are in which container.
    - name: cgroup
      mountPath: /sys/fs/cgroup
      readOnly: true
{{- if ne $from "runtime" }}
    # The socket of containerd, which tells which container of a pod runs. The directory: containerd creates the
    # socket again at each start. Without a runtime socket the agent reads pod statuses, which are a little later.
    - name: runtime
      mountPath: {{ dir $socket }}
{{- end }}
{{- if eq .Values.agent.names "token" }}
    # Who shows this token sees the names of pods.
    - name: names
      mountPath: /etc/vcuda/names
      readOnly: true
{{- end }}
    # Temporary files of credential plugins and Python; the image is read-only.
    - name: tmp
      mountPath: /tmp
{{- if include "vcuda.usesCdi" . }}
    - name: cdi
      mountPath: {{ .Values.agent.cdi.directory }}
{{- end }}
{{- with .Values.agent.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* The same with the checks of `vcuda doctor node` in the place of the agent: they see what it will see. */}}
{{- define "vcuda.doctorContainer" -}}
{{- $container := omit (include "vcuda.agentContainer" . | fromYamlArray | first) "ports" "livenessProbe" "readinessProbe" -}}
{{- $args := concat (list "doctor" "node" "--startup") (rest $container.args) -}}
{{- merge (dict "name" "doctor" "args" $args) $container | toYaml -}}
{{- end -}}
