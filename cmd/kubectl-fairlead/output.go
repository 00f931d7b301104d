package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

type palette struct{ on bool } // colours words if it is on

// paletteFor colours only for a terminal that is not dumb, without NO_COLOR (no-color.org: an empty one is none).
func paletteFor(w io.Writer) palette {
	return palette{on: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// The codes of colours. All cells of a table have one, of equal length, so that it stays aligned.
const good, bad, warn, plain, dim = "32", "31", "33", "39", "2"

func (p palette) paint(code, text string) string {
	if !p.on || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

type cell struct{ text, colour string } // a word of a table. No colour means plain

func cells(texts ...string) (row []cell) {
	for _, text := range texts {
		row = append(row, cell{text: text})
	}
	return row
}

func (p palette) table(w io.Writer, rows [][]cell) error {
	t := printers.GetNewTabWriter(w)
	p.rows(t, rows)
	return t.Flush()
}

// rows writes rows to a tabwriter, whose Flush returns the error.
func (p palette) rows(t io.Writer, rows [][]cell) {
	for _, row := range rows {
		var words []string
		for _, c := range row {
			words = append(words, p.paint(cmp.Or(c.colour, plain), printable.Line(c.text)))
		}
		_, _ = fmt.Fprintln(t, strings.Join(words, "\t"))
	}
}

type form struct{ genericclioptions.PrintFlags } // of the output, by kubectl's printers

func (f *form) addFlags(cmd *cobra.Command) {
	f.PrintFlags = genericclioptions.PrintFlags{
		OutputFormat: new(""), JSONYamlPrintFlags: &genericclioptions.JSONYamlPrintFlags{},
		TemplatePrinterFlags: genericclioptions.NewKubeTemplatePrintFlags(),
	}
	f.AddFlags(cmd)
	all := append(f.AllowedFormats(), "wide")
	cmd.Flag("output").Usage = "Output format: " + strings.Join(all, ", ") + "."
	forms := cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.Flags().MarkHidden("show-managed-fields")   // this and the next line
	_ = cmd.RegisterFlagCompletionFunc("output", forms) // fail only for a flag that does not exist
}

func (f *form) wide() bool { return *f.OutputFormat == "wide" }

// printer returns nil for text for people. An unknown format is a usage error.
func (f *form) printer() (printers.ResourcePrinter, error) {
	if f.wide() || *f.OutputFormat == "" && *f.TemplatePrinterFlags.TemplateArgument == "" {
		return nil, nil
	}
	p, err := f.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = fmt.Errorf("--output %q is not one of %s, wide", *f.OutputFormat, strings.Join(f.AllowedFormats(), ", "))
	}
	return p, cli.Usage(err)
}

func encode(w io.Writer, p printers.ResourcePrinter, kind string, v any) error {
	var object map[string]any
	data, err := json.Marshal(v)
	if err := errors.Join(err, json.Unmarshal(data, &object)); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	object["apiVersion"], object["kind"] = "fairlead.dev/v1", kind                   // to v1 fields are only added
	return p.PrintObj(&unstructured.Unstructured{Object: object}, printable.JSON(w)) // YAML and templates, too
}

func groupFlags(cmd *cobra.Command, flags *genericclioptions.ConfigFlags) {
	cmd.Long = long(cmd.Name())
	var groups cliflag.NamedFlagSets
	groups.FlagSet(cmd.Name()).AddFlagSet(cmd.Flags())
	flags.AddFlags(groups.FlagSet("connection"))
	cli.Flags(cmd, groups)
}

func differ(out io.Writer, before, after string) {
	was, is := sets.New(slices.Collect(strings.Lines(before))...), sets.New(slices.Collect(strings.Lines(after))...)
	lacks := func(sign, text string, other sets.Set[string]) {
		for line := range strings.Lines(text) {
			if !other.Has(line) {
				_, _ = fmt.Fprintln(out, sign+printable.Line(strings.TrimSpace(line))) // the next one reports an error
			}
		}
	}
	lacks("- ", before, is)
	lacks("+ ", after, was)
}
