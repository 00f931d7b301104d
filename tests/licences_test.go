package tests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// permissive reports whether a text is a licence that linked modules may have.
func permissive(text string) bool {
	text = strings.Join(strings.Fields(strings.ToLower(text)), " ")
	return slices.ContainsFunc([][]string{ // what only they say
		{"apache license", "version 2.0"},
		{"permission is hereby granted, free of charge", "the software is provided"},                       // MIT
		{"permission to use, copy, modify, and/or distribute this software"},                               // ISC
		{"redistribution and use in source and binary forms, with or without modification, are permitted"}, // BSD
		{"this is free and unencumbered software released into the public domain"},                         // Unlicense
	}, func(says []string) bool {
		return !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(text, s) })
	})
}

// linked returns the modules that the commands link, with their folders.
func linked(t *testing.T) map[string]string {
	t.Helper()
	modules := map[string]string{}
	for _, line := range deps(t, "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/...") {
		if path, dir, found := strings.Cut(line, " "); found {
			modules[path] = dir
		}
	}
	return modules
}

// Every linked module has a permissive licence.
func TestLicences(t *testing.T) {
	modules := linked(t)
	if len(modules) < 20 {
		t.Fatalf("only %d modules were found", len(modules))
	}
	for path, dir := range modules {
		if !licensed(t, dir) {
			t.Errorf("%s: no known licence in %s: read it, and add it to the list or drop the module", path, dir)
		}
	}
}

// licensed reports whether a module's folder has the text of a permissive licence.
func licensed(t *testing.T, dir string) bool {
	t.Helper()
	return slices.ContainsFunc(must.Get(os.ReadDir(dir))(t), func(f os.DirEntry) bool {
		name := strings.ToUpper(f.Name())
		if !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && name != "UNLICENSE" {
			return false
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name())) // it may be a folder
		return err == nil && permissive(string(text))
	})
}
