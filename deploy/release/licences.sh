#!/usr/bin/env bash
# licences.sh prints the texts of licences, and notices, that have to go with programs that contain the work. Each line of its input is a platform and its programs:
# OS ARCH PACKAGE… That of Go's own library is golang.org/x/net's, too.
set -euo pipefail
export LC_ALL=C
while read -r os arch packages; do
  CGO_ENABLED=0 GOOS=$os GOARCH=$arch go list -deps -tags grpcnotrace -f '{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' $packages </dev/null
done | sort -u | while read -r module dir; do
  [[ -z $module ]] || find "$dir" -type f \( -iname 'licen[cs]e*' -o -iname 'unlicense*' -o -iname 'copying*' -o -iname 'notice*' \) ! -name '*.go' ! -path '*/testdata/*' -printf '%P\n' |
    sort | while read -r file; do printf '%s %s\n\n' "$module" "$file" && cat "$dir/$file" && echo; done
done
