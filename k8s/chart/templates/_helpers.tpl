{{/* The image of a container: (list root values-of-the-image default-tag). */}}
{{- define "hami.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}{{ $tag := index . 2 -}}
{{- with $image.registry | default $root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default $tag }}{{ end }}
{{- end }}

{{/* Not empty where the API server has admission policies and they are wanted. */}}
{{- define "hami.admissionPolicies" -}}
{{- if and .Values.admissionPolicies.enabled (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") -}}
true
{{- end }}
{{- end }}

{{/* The ConfigMap with HAMi's config.json; empty: none. */}}
{{- define "hami.nodeConfiguration" -}}
{{- with .Values.devicePlugin.nodeConfiguration -}}
{{- if .externalConfigName }}{{ .externalConfigName }}{{ else if .config }}hami-node-config{{ end }}
{{- end }}
{{- end }}

{{/* Of all values that a ConfigMap shows. */}}
{{- define "hami.configChecksum" -}}
{{- $values := pick .Values "schedulerName" "resourceName" "resourceMem" "resourceMemPercentage" "resourceCores" "resourcePriority" "device-config" -}}
{{- $agent := omit .Values.devicePlugin "image" "resources" "podAnnotations" "extraEnvs" "tolerations" "nvidiaNodeSelector" "updateStrategy" -}}
{{ list $values $agent .Chart.Version | toJson | sha256sum }}
{{- end }}

{{/* A Job can't be changed: another name for another version or other values. */}}
{{- define "hami.jobSuffix" -}}
{{ .Values.global.imageTag | default .Chart.AppVersion | replace "." "-" | lower }}-{{ .Values | toJson | sha256sum | trunc 8 }}
{{- end }}

{{/* Not empty where slices by ResourceClaims are wanted, and fails where they can't be had. */}}
{{- define "hami.dra" -}}
{{- if .Values.dra.enabled -}}
{{- if not (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") -}}
{{- fail "dra.enabled needs Kubernetes 1.36 or newer: this API server serves no MutatingAdmissionPolicy of admissionregistration.k8s.io/v1" -}}
{{- end -}}
true
{{- end }}
{{- end }}
