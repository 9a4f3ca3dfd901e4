{{/* Image and pull policy of a container: (list root values-of-the-image default-tag). */}}
{{- define "hami.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}{{ $tag := index . 2 -}}
image: {{ with $image.registry | default $root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default $tag }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- with $image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Where and with which priority a pod runs: (list root values-of-the-part name-of-the-pods). */}}
{{- define "hami.placement" -}}
{{- $root := index . 0 }}{{ $part := index . 1 }}{{ $name := index . 2 }}
{{- $own := dict "app.kubernetes.io/name" $name }}
{{- $placed := pick $part "affinity" "nodeSelector" "runtimeClassName" "tolerations" }}
{{- $_ := set $placed "priorityClassName" (hasKey $part "priorityClassName" | ternary $part.priorityClassName $root.Values.global.priorityClassName) }}
{{- $_ := set $placed "imagePullSecrets" list }}
{{- range $root.Values.global.imagePullSecrets }}
{{- $_ := set $placed "imagePullSecrets" (append $placed.imagePullSecrets (dict "name" .)) }}
{{- end }}
{{- $_ := set $placed "topologySpreadConstraints" list }}
{{- range $part.topologySpreadConstraints }}
{{- $constraint := hasKey . "labelSelector" | ternary . (merge (dict "labelSelector" (dict "matchLabels" $own)) .) }}
{{- $_ := set $placed "topologySpreadConstraints" (append $placed.topologySpreadConstraints $constraint) }}
{{- end }}
{{- range $key, $value := $placed }}
{{- if not $value }}{{ $_ := unset $placed $key }}{{ end }}
{{- end }}
{{- if $placed }}{{ toYaml $placed }}{{ end }}
{{- end }}

{{/* Labels and annotations of an object that has no others. */}}
{{- define "hami.described" -}}
labels:
  app.kubernetes.io/part-of: hami
  {{- with .Values.global.labels }}{{ toYaml . | nindent 2 }}{{- end }}
{{- with .Values.global.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Changes with the content of these templates: (list root template...). */}}
{{- define "hami.digest" -}}
{{- $root := first . }}{{ $texts := list }}
{{- range rest . }}
{{- $texts = append $texts (include (print $root.Template.BasePath "/" .) $root) }}
{{- end }}
{{- $texts | join "" | sha256sum | trunc 12 | quote }}
{{- end }}

{{/* Not empty if the API server has admission policies and they are wanted. */}}
{{- define "hami.admissionPolicies" -}}
{{- if and .Values.admissionPolicies.enabled (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
true
{{- end }}
{{- end }}

{{/* The ConfigMap with HAMi's config.json; empty: none. */}}
{{- define "hami.nodeConfiguration" -}}
{{- with .Values.devicePlugin.nodeConfiguration -}}
{{- if .externalConfigName }}{{ .externalConfigName }}{{ else if .config }}hami-node-config{{ end }}
{{- end }}
{{- end }}

{{/* A Job can't be changed: another name for another version or other values. */}}
{{- define "hami.jobSuffix" -}}
{{ .Values.global.imageTag | default .Chart.AppVersion | replace "." "-" | lower }}-{{ .Values | toJson | sha256sum | trunc 8 }}
{{- end }}

{{/* Not empty if slices by ResourceClaims are wanted; fails if they can't be had. */}}
{{- define "hami.dra" -}}
{{- if .Values.dra.enabled -}}
{{- if semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.36 or newer: this is %s (helm template: --kube-version)" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
true
{{- end }}
{{- end }}
