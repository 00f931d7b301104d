#!/usr/bin/env bash
# release.sh DIR VERSION IMAGE URL NFPM makes a release page's files from DIR/bin/OS/ARCH and deploy/: archives, packages, image and chart as OCI layouts, manifests, a krew
# manifest, provenance, checksums. SOURCE_DATE_EPOCH dates everything, so the same programs give the same bytes on any machine at any time.
set -euo pipefail
out=$1 version=$2 image=$3 url=$4 nfpm=$5
number=${version#v} # of packages and of the chart; a commit without a tag comes before every release
[[ $version == v* ]] || number=0.0.0-g$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C SOURCE_DATE_EPOCH
go build -C tests/tools/oci -o "$work/release" .

pack() { tar --create --dereference --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" "$@"; }
archive() { pack "${@:2}" | gzip -9n >"$out/$1"; }

# The programs print their completions and manual pages. roff must not interpret the text: it would a backslash, and a point or an apostrophe at the start of a line.
share=$out/share
mkdir -p "$share"/{man,completion}
for program in fairlead kubectl-fairlead; do
  for shell in bash zsh fish; do "bin/$program" completion "$shell" >"$share/completion/$program.$shell"; done
  {
    printf '.TH %s 8 %s "%s %s"\n.SH NAME\n' "${program^^}" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)" "$program" "$version"
    "bin/$program" --help | sed "1!d; s/^/$program \\\\- /"
    for command in '' serve status top explain lint init adopt release; do
      case $program/$command in kubectl-fairlead/serve | fairlead/init | fairlead/adopt | fairlead/release) continue ;; esac
      printf '.SH %s\n.nf\n' "${program^^} ${command^^}"
      "bin/$program" $command --help | sed "s/\\\\/\\\\e/g; s/^[.']/\\\\\&&/"
      printf '.fi\n'
    done
  } | gzip -9n >"$share/man/$program.8.gz"
done
sed 's|/usr/local/bin/|/usr/bin/|' deploy/systemd/fairlead.service >"$share/fairlead.service"

licences=THIRD-PARTY-LICENSES
for dir in "$out"/bin/*/*; do
  arch=${dir##*/} os=${dir%/*} os=${os##*/}
  echo "$os $arch" $(basename -a -s .exe "$dir"/* | sed 's|^|./cmd/|')
done | deploy/release/licences.sh >"$share/$licences"

krew=
for dir in "$out"/bin/*/*; do
  arch=${dir##*/} os=${dir%/*} os=${os##*/} plugin=$(basename "$dir"/kubectl-fairlead*)
  archive "kubectl-fairlead_${version}_${os}_$arch.tar.gz" -C "$dir" "$plugin" -C "$PWD" LICENSE -C "$share" "$licences"
  krew+="
  - selector: {matchLabels: {os: $os, arch: $arch}}
    uri: $url/kubectl-fairlead_${version}_${os}_$arch.tar.gz
    sha256: $(sha256sum <"$out/kubectl-fairlead_${version}_${os}_$arch.tar.gz" | cut -d' ' -f1)
    bin: $plugin"
  [[ $os == linux ]] || continue
  archive "fairlead_${version}_${os}_$arch.tar.gz" -C "$dir" fairlead kubectl-fairlead -C "$PWD" LICENSE -C "$PWD/deploy/systemd" fairlead.service fairlead-kubeconfig.service fairlead-kubeconfig.timer -C "$share" man completion "$licences"
  for kind in deb rpm; do
    DIR=$dir SHARE=$share ARCH=$arch NUMBER=$number "$nfpm" package --config deploy/release/nfpm.yaml --packager $kind --target "$out" >/dev/null
  done
  mkdir -p "$work/layers" "$work/$arch/usr/local/bin" "$work/$arch/usr/share/doc/fairlead"
  cp "$dir"/* "$work/$arch/usr/local/bin"
  cp LICENSE "$share/$licences" "$work/$arch/usr/share/doc/fairlead"
  pack -C "$work/$arch" usr >"$work/layers/$arch.tar"
done
cat >"$out/krew-fairlead.yaml" <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {name: fairlead}
spec:
  version: v$number
  homepage: https://github.com/fairlead-proxy/fairlead
  shortDescription: Ask the front door of a cluster where requests go
  description: |
    status, top, explain, lint, init, adopt and release for Fairlead, the
    Kubernetes API aggregation layer as a program of its own: which extension
    servers can be used, who sends requests, where one goes and why, what is
    wrong with APIServices and certificates, and certificates for managed
    clusters.
  platforms:$krew
EOF

mkdir -p "$work/base/etc/ssl/certs"
printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$work/base/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$work/base/etc/group"
"$work/release" roots >"$work/base/etc/ssl/certs/ca-certificates.crt"
pack -C "$work/base" etc >"$work/base.tar"
digest=$("$work/release" image "$work" "$version" "$SOURCE_DATE_EPOCH" "$work/base.tar" "$image")
echo "$image@$digest" >"$out/image.digest"

# Manifests and chart name the image by its digest, which cannot change.
mkdir "$work/manifests"
cp -r deploy/{base,components,overlays,static-pod,systemd} "$work/manifests"
cp -rL deploy/helm/fairlead "$work/fairlead"
grep -rl 'ghcr.io/fairlead-proxy/fairlead' "$work/manifests" "$work/fairlead" | xargs sed -i \
  -e "s|ghcr.io/fairlead-proxy/fairlead:v[^ ]*|$image@$digest|" \
  -e "s|newName: ghcr.io/fairlead-proxy/fairlead, newTag: [^}]*|newName: $image, digest: $digest|" \
  -e "s|repository: ghcr.io/fairlead-proxy/fairlead|repository: $image|; s|digest: \"\"|digest: $digest|"
sed -i -e "s|^version: .*|version: $number|; s|^appVersion: .*|appVersion: \"$version\"|" "$work/fairlead/Chart.yaml"
archive "fairlead-manifests_$version.tar.gz" -C "$work/manifests" .
archive "fairlead-$number.tgz" -C "$work" fairlead
"$work/release" chart "$work" "$number" "$out/fairlead-$number.tgz"
for layout in image chart; do
  cp -r "$work/$layout" "$out"
  pack -C "$work/$layout" . >"$out/fairlead-${layout}_$version.oci.tar"
done
# A change that is not committed, or a file that git does not know, has no digest, and a tarball in a packager's repository has that one's commit: then it is left out.
commit=$(git rev-parse HEAD 2>/dev/null) || commit=
[[ -z $commit ]] || [[ -z $(git rev-parse --show-prefix)$(git status --porcelain --untracked-files=normal) ]] || { commit= && echo 'release: uncommitted changes, or no clone of its own: the provenance names no commit' >&2; }
"$work/release" provenance "$out" "$version" "$image" "$commit" "${BUILDER_ID:-https://github.com/fairlead-proxy/fairlead/blob/main/Makefile}"
cd "$out"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS
