# The images side by side: `make images`, which sets these variables, or `docker buildx bake`.
variable "VERSION" { default = "dev" }
variable "REVISION" { default = "" }
variable "SOURCE" { default = "" }
variable "HAMI_BASE" { default = "python:3.11-slim-bookworm" }
variable "HAMI_NATIVE" { default = "" }
variable "HAMI_PIP_CONF" { default = "/dev/null" }
variable "PREFIX" { default = "" } # before each name: your registry and folder

group "default" {
  targets = ["services"]
}

group "all" {
  targets = ["services", "node-agent-fakegpu", "tools"]
}

target "image" {
  context = "."
  secret  = ["id=pip,src=${HAMI_PIP_CONF}"]
  args = {
    BASE     = HAMI_BASE
    NATIVE   = HAMI_NATIVE != "" ? HAMI_NATIVE : HAMI_BASE
    VERSION  = VERSION
    REVISION = REVISION
    SOURCE   = SOURCE
  }
}

target "services" {
  inherits = ["image"]
  name     = service
  matrix   = { service = ["scheduler", "webhook", "metrics", "node-agent"] }
  args     = { SERVICE = service }
  tags     = ["${PREFIX}hami-${service}:${VERSION}"]
}

target "node-agent-fakegpu" {
  inherits = ["image"]
  target   = "node-agent-fakegpu"
  args     = { SERVICE = "node-agent" }
  tags     = ["${PREFIX}hami-node-agent:${VERSION}-fakegpu"]
}

target "tools" {
  inherits = ["image"]
  args     = { SERVICE = "tools" }
  tags     = ["${PREFIX}hami-tools:${VERSION}"]
}
