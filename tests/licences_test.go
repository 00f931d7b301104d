package tests

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// licences lists the permissive licences that linked modules may have, each with texts that only it
// contains.
func licences() map[string][]string {
	return map[string][]string{
		"Apache-2.0": {"apache license", "version 2.0"},
		"MIT":        {"permission is hereby granted, free of charge", "the software is provided"},
		"ISC":        {"permission to use, copy, modify, and/or distribute this software"},
		"BSD":        {"redistribution and use in source and binary forms, with or without modification, are permitted"},
		"Unlicense":  {"this is free and unencumbered software released into the public domain"},
	}
}

// exceptions are modules with another licence, with the reason why it is acceptable.
func exceptions() map[string]string { return map[string]string{} }

// classify returns the names of the licences in a text.
func classify(text string) []string {
	text = strings.Join(strings.Fields(strings.ToLower(text)), " ")
	var found []string
	for name, says := range licences() {
		if !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(text, s) }) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// linked returns the modules that the commands link, with their folders.
func linked(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Module,Standard", "./cmd/...")
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	modules := map[string]string{}
	for in := json.NewDecoder(out); ; {
		var p struct {
			Module *struct {
				Path, Dir string
				Main      bool
			}
		}
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m := p.Module; m != nil && !m.Main {
			modules[m.Path] = m.Dir
		}
	}
	must.Do(t, cmd.Wait())
	return modules
}

// Every linked module has a permissive licence.
func TestLicences(t *testing.T) {
	modules := linked(t)
	if len(modules) < 20 {
		t.Fatalf("only %d modules were found", len(modules))
	}
	counts := map[string]int{}
	for path, dir := range modules {
		name := licenceOf(t, dir)
		counts[name]++
		if _, known := exceptions()[path]; name == "" && !known {
			t.Errorf("%s: no known licence in %s: read it, and add it to the list or drop the module", path, dir)
		}
	}
	t.Logf("%d modules: %v", len(modules), counts)
}

// licenceOf returns a module's licences. Empty means none that is allowed.
func licenceOf(t *testing.T, dir string) string {
	t.Helper()
	for _, f := range must.Get(os.ReadDir(dir))(t) {
		name := strings.ToUpper(f.Name())
		if !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") && name != "UNLICENSE" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // a folder
		}
		if found := classify(string(text)); len(found) > 0 {
			return strings.Join(found, "+")
		}
	}
	return ""
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                                             "Apache-2.0",
		"Redistribution and use in source and binary\nforms, with or without modification, are permitted provided": "BSD",
		"GNU GENERAL PUBLIC LICENSE\nVersion 3":                                                                    "",
		"Mozilla Public License Version 2.0":                                                                       "",
		"All rights reserved.":                                                                                     "",
	} {
		if got := strings.Join(classify(text), "+"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
