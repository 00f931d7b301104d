package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// palette colours words. The zero palette does not colour.
type palette struct{ on bool }

// paletteFor colours only for a terminal that is not dumb, without NO_COLOR (https://no-color.org).
func paletteFor(w io.Writer) palette {
	f, ok := w.(*os.File)
	_, no := os.LookupEnv("NO_COLOR")
	return palette{on: ok && !no && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))}
}

func (p palette) paint(code, text string) string {
	if !p.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) good(text string) string { return p.paint("32", text) }
func (p palette) bad(text string) string  { return p.paint("31", text) }
func (p palette) warn(text string) string { return p.paint("33", text) }
func (p palette) dim(text string) string  { return p.paint("2", text) }

// cell is a word of a table and its colour.
type cell struct {
	text  string
	paint func(string) string
}

// table writes rows in aligned columns, as kubectl does. Colours do not count as width.
func table(w io.Writer, rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			row[i].text = printable.Line(row[i].text)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	const gap = 3 // kubectl's
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			text := c.text
			if c.paint != nil {
				text = c.paint(text)
			}
			line.WriteString(text)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+gap))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// form is the output format, with kubectl's printers. The zero form is text for people.
type form struct {
	flags *genericclioptions.PrintFlags
}

func (f *form) addFlags(cmd *cobra.Command) {
	f.flags = &genericclioptions.PrintFlags{
		OutputFormat: new(""), JSONYamlPrintFlags: &genericclioptions.JSONYamlPrintFlags{}, TemplatePrinterFlags: genericclioptions.NewKubeTemplatePrintFlags(),
	}
	f.flags.AddFlags(cmd)
	all := append(f.flags.AllowedFormats(), "wide")
	cmd.Flag("output").Usage = "Output format: " + strings.Join(all, ", ") + "."
	forms := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return all, cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.Flags().MarkHidden("show-managed-fields")   // this and the next line
	_ = cmd.RegisterFlagCompletionFunc("output", forms) // fail only for a flag that does not exist
}

func (f *form) wide() bool { return *f.flags.OutputFormat == "wide" }

// printer returns nil for text for people.
func (f *form) printer() (printers.ResourcePrinter, error) {
	if f.wide() || *f.flags.OutputFormat == "" && *f.flags.TemplatePrinterFlags.TemplateArgument == "" {
		return nil, nil
	}
	p, err := f.flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = fmt.Errorf("--output %q is not one of %s, wide", *f.flags.OutputFormat, strings.Join(f.flags.AllowedFormats(), ", "))
	}
	return p, err
}

// schemaVersion is that of documents for programs: within it fields are added but never removed.
const schemaVersion = "fairlead.dev/v1"

// encode prints a document as an object with a version and a kind.
func encode(w io.Writer, p printers.ResourcePrinter, kind string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	object["apiVersion"], object["kind"] = schemaVersion, kind
	return p.PrintObj(&unstructured.Unstructured{Object: object}, printable.JSON(w)) // YAML and templates, too: somebody may read them
}

// groupFlags separates kubectl's connection flags from a command's own in help.
func groupFlags(cmd *cobra.Command, flags *genericclioptions.ConfigFlags) {
	var groups cliflag.NamedFlagSets
	groups.FlagSet(cmd.Name()).AddFlagSet(cmd.Flags())
	flags.AddFlags(groups.FlagSet("connection"))
	cli.Flags(cmd, groups)
}
