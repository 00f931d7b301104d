package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// The names of in-toto's Statement v1 (github.com/in-toto/attestation) and SLSA's provenance v1 (slsa.dev/spec/v1.0).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

const source = "https://github.com/fairlead-proxy/fairlead"

// provenance says of what, by what and how the files of a release were made: all files in dir, and what push puts into a
// registry as image and chart. It has no time, so that it is the same for the same source, wherever it is made.
func provenance(dir, version, image, commit, builder string) {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, file := range get(filepath.Glob(filepath.Join(dir, "*"))) {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue // bin, share, and the layouts, which are subjects as archives
		}
		s.Subject = append(s.Subject, resource{Name: filepath.Base(file), Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(get(os.ReadFile(file))))}})
	}
	for name, kind := range map[string]string{image: "image", filepath.Dir(image) + "/charts/fairlead": "chart"} {
		m := get(get(layout.ImageIndexFromPath(filepath.Join(dir, kind))).IndexManifest())
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": m.Manifests[0].Digest.Hex}})
	}
	slices.SortFunc(s.Subject, func(a, b resource) int { return strings.Compare(a.Name, b.Name) })

	sums := get(os.ReadFile("go.sum"))
	d := &s.Predicate.BuildDefinition
	d.BuildType = source + "/blob/main/docs/operations.md#the-release"
	d.ExternalParameters = map[string]string{"command": "make release", "version": version, "image": image}
	d.ResolvedDependencies = []resource{
		{URI: "git+" + source, Digest: map[string]string{"gitCommit": commit}},
		{Name: "go.sum", Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(sums))}}, // all modules, by their hashes
		{Name: runtime.Version(), URI: "https://go.dev/dl/"},
	}
	if commit == "" { // outside a clone
		d.ResolvedDependencies[0].Digest = nil
	}
	s.Predicate.RunDetails.Builder.ID = builder
	do(os.WriteFile(filepath.Join(dir, "provenance.json"), append(get(json.MarshalIndent(s, "", "  ")), '\n'), 0o644))
}
