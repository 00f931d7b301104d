// Command release writes what release.sh has packed as OCI layouts, which need no daemon and which
// every registry takes: the image of all architectures, on no base, and the chart. It is a module
// of its own, so that its libraries come nowhere near what is shipped.
//
//	release roots                               # CA roots, for the image
//	release image DIR VERSION EPOCH BASE.tar IMAGE    # of BASE.tar and DIR/layers/ARCH.tar; prints the digest
//	release chart DIR VERSION CHART.tgz
//	release provenance DIR VERSION IMAGE COMMIT BUILDER   # of the files in DIR, in the project's folder
package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "roots":
		for root := range bundle.Roots() {
			do(pem.Encode(os.Stdout, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	case len(args) == 6 && args[0] == "image":
		image(args[1], args[2], time.Unix(get(strconv.ParseInt(args[3], 10, 64)), 0).UTC(), args[4], args[5])
	case len(args) == 4 && args[0] == "chart":
		chart(args[1], args[2], args[3])
	case len(args) == 6 && args[0] == "provenance":
		provenance(args[1], args[2], args[3], args[4], args[5])
	default:
		log.Fatalf("%q is not understood", args)
	}
}

// do ends the program on an error: nothing is deferred.
func do(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// get is do for a call that returns a value, too.
func get[T any](v T, err error) T {
	do(err)
	return v
}

// image has one layer that never changes and one with the programs. Nothing else is in it, so
// nothing else is to be patched. name is what manifests call it, without the digest.
func image(dir, version string, made time.Time, base, name string) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, file := range get(filepath.Glob(dir + "/layers/*.tar")) {
		img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		for _, file := range []string{base, file} {
			img = get(mutate.AppendLayers(img, get(tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer)))))
		}
		config := get(img.ConfigFile()).DeepCopy()
		config.OS, config.Architecture, config.Created = "linux", strings.TrimSuffix(filepath.Base(file), ".tar"), v1.Time{Time: made}
		config.Config = v1.Config{
			User: "65532:65532", // by number, so that runAsNonRoot can be checked without reading passwd
			Env:  []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"/usr/local/bin/fairlead"}, Cmd: []string{"serve"},
			ExposedPorts: map[string]struct{}{"6443/tcp": {}, "6444/tcp": {}}, // the front door, the admin port
			Labels:       map[string]string{"org.opencontainers.image.version": version, "org.opencontainers.image.source": "https://github.com/fairlead-proxy/fairlead"},
		}
		img = get(mutate.ConfigFile(img, config))
		platform := &v1.Platform{OS: config.OS, Architecture: config.Architecture}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	p, digest := get(layout.Write(dir+"/image", empty.Index)), get(index.Digest())
	fmt.Println(digest)
	annotations := named(version)
	// The name that containerd gives it when it imports the archive: that of the manifests, or kubelets would not find it.
	annotations["io.containerd.image.name"] = name + "@" + digest.String()
	do(p.AppendIndex(index, layout.WithAnnotations(annotations)))
}

func named(version string) map[string]string {
	return map[string]string{"org.opencontainers.image.ref.name": version}
}

// chart is what helm push would push.
func chart(dir, version, archive string) {
	data := get(os.ReadFile(archive))
	config := get(json.Marshal(map[string]string{"apiVersion": "v2", "name": "fairlead", "type": "application", "version": version}))
	p := get(layout.Write(dir+"/chart", empty.Index))
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: make([]v1.Descriptor, 1)}
	m.Config = blob(p, config, "application/vnd.cncf.helm.config.v1+json")
	m.Layers[0] = blob(p, data, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	d := blob(p, get(json.Marshal(m)), types.OCIManifestSchema1)
	d.Annotations = named(version)
	do(p.AppendDescriptor(d))
}

func blob(p layout.Path, data []byte, kind types.MediaType) v1.Descriptor {
	hash, size, err := v1.SHA256(bytes.NewReader(data))
	do(err)
	do(p.WriteBlob(hash, io.NopCloser(bytes.NewReader(data))))
	return v1.Descriptor{MediaType: kind, Size: size, Digest: hash}
}
